#!/usr/bin/env bash
# Runs a command as root in a virtual machine with a kernel of its own, on this machine's files.
#
#     scripts/in_vm.sh .venv/bin/pytest tests/integration/test_sandbox_attacks.py -k "fast-root and memory"
#
# So the sandbox is tested with what the machine's own kernel may lack: cgroup v2, Landlock. What the command writes goes
# to the memory of the machine that is made for it, and is gone afterwards. It runs in the current directory and has no
# network but its loopback. Needs root and, on Debian: apt install qemu-system-x86 linux-image-cloud-amd64 busybox-static
# cpio. Where the processor has no virtualization, it is emulated, about five times slower.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,9s/^# \?//p' "$0"; exit 2; }

kernel=${KERNEL:-$(ls -v /boot/vmlinuz-* | tail -1)}
modules=/lib/modules/${kernel#/boot/vmlinuz-}/kernel
memory=${MEMORY:-8G}
scratch=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$scratch"' EXIT

mkdir -p "$scratch"/initrd/{bin,host,upper,root,dev,proc}
cp /bin/busybox "$scratch/initrd/bin/"
for name in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci fuse virtiofs overlay; do
    file=$(find "$modules" -name "$name.ko*" -print -quit)
    [ -z "$file" ] || { cp "$file" "$scratch/initrd/"; echo "/${file##*/}" >>"$scratch/initrd/modules"; }
done
printf 'export PATH=%q HOME=%q\ncd %q\n%s\n' "$PATH" "$HOME" "$PWD" "$(printf '%q ' "$@")" >"$scratch/initrd/command"
cat >"$scratch/initrd/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
while read -r module; do insmod "$module"; done </modules
mount -t devtmpfs dev /dev
mount -t virtiofs host /host -o ro
mount -t tmpfs upper /upper
mkdir /upper/upper /upper/work
mount -t overlay root /root -o lowerdir=/host,upperdir=/upper/upper,workdir=/upper/work
cd /root
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev
mkdir -p dev/pts dev/shm
mount -t devpts pts dev/pts
mount -t tmpfs shm dev/shm
mount -t tmpfs run run
mount -t cgroup2 cgroup sys/fs/cgroup
ln -sf /proc/self/fd dev/fd
ifconfig lo 127.0.0.1 up
cp /command run/command
ulimit -n 65536
# not chroot: a program in one may make no user namespace
exec switch_root /root /bin/bash -c 'stty -F /dev/ttyS1 raw; bash /run/command </dev/null >/dev/ttyS1 2>&1; echo $? >/dev/ttyS2
    echo o >/proc/sysrq-trigger; sleep 60'
INIT
chmod +x "$scratch/initrd/init"
(cd "$scratch/initrd" && find . | cpio --quiet -o -H newc | gzip -1) >"$scratch/initrd.gz"

/usr/lib/qemu/virtiofsd --socket-path="$scratch/socket" -o source=/ -o sandbox=chroot -o cache=always \
    2>"$scratch/virtiofsd.log" &
pids+=($!)
for _ in $(seq 100); do [ -S "$scratch/socket" ] && break; sleep 0.1; done
[ -S "$scratch/socket" ] || { echo "virtiofsd did not start:"; cat "$scratch/virtiofsd.log"; exit 1; } >&2

acceleration=(-accel "tcg,thread=multi" -cpu max)
if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then acceleration=(-accel kvm -cpu host); fi
touch "$scratch/status"
qemu-system-x86_64 "${acceleration[@]}" -smp "$(nproc)" -m "$memory" -nodefaults -no-user-config -display none -no-reboot \
    -object "memory-backend-memfd,id=memory,size=$memory,share=on" -numa node,memdev=memory \
    -chardev "socket,id=host,path=$scratch/socket" -device vhost-user-fs-pci,chardev=host,tag=host \
    -serial "file:$scratch/console" -serial stdio -serial "file:$scratch/status" \
    -kernel "$kernel" -initrd "$scratch/initrd.gz" -append "console=ttyS0 quiet panic=-1" </dev/null
status=$(tr -d '\r\n' <"$scratch/status")
[ -n "$status" ] || { echo "the virtual machine ended without a result; its console:"; tail -30 "$scratch/console"; exit 1; } >&2
exit "$status"
