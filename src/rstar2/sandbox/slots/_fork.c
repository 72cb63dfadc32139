/* The fast path of the sandbox: fork a warm interpreter in half a millisecond, collect its output.
 *
 * Beside `latest_pid`, a helper of sessions, there are two functions. `portable_fork.py` has a slower version of the
 * second in Python that behaves the same.
 *
 *   rebase(maps_fd)   Fork costs what its page tables cost. All private memory of the warm template is copied into one
 *                     sealed memfd and mapped back over itself, so a fork inherits file mappings, whose page tables
 *                     are not copied. From then on the template must not touch its heap: it parks in C.
 *   park(...)         The template's loop: one message, one slot. And the slot's loop: one request, one forked child,
 *                     one reply.
 *
 * A slot's mappings are copied and torn down with every fork, so they are kept to what programs need. After the slot
 * has confined itself, in Python, its memory is reset to the image: nothing of that work stays mapped. Then it
 * rehearses one program, so that its children find the pages that every program reads already there. The kernel would
 * map sixteen around each; `exact_faults` limits it to one. The pages that every program writes are copied by the
 * fork itself, which is cheaper than a fault for each: `pin_written`. The interpreter's code is mapped in units of
 * 2 MiB, which a fork does not copy at all: `merge_code`. A program's allocations are close together: `settle_heap`.
 * Each of these is done where the kernel allows it, and changes nothing but the cost.
 *
 * Invariant of a slot: when a reply is sent, every process that the execution started is dead and reaped, and nothing
 * of its code or output is left in memory that a later child inherits.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* ---- the wire: the same layout as wire.py ---- */

struct request {
    uint32_t code_len, stdin_len, wall_ms, cpu_s;
    uint64_t data_bytes; /* RLIMIT_DATA beyond what the interpreter itself maps */
    uint64_t address_bytes; /* RLIMIT_AS beyond what the interpreter itself maps; 0: no limit */
    uint64_t file_bytes;
    uint32_t num_processes, output_bytes;
    uint32_t longest_ms; /* time after which the program is stopped without asking */
    uint32_t young_ms;   /* time after which the program gets a low CPU share */
    uint32_t value_bytes; /* the maximum length of the value */
    uint32_t stream_ms;   /* the interval at which output is streamed; 0: not streamed */
};

struct reply {
    int32_t wait_status;
    uint32_t flags, stdout_len, stderr_len, value_len, max_rss_kib;
    uint64_t wall_us, cpu_us;
};

enum { TIMED_OUT = 1, STDOUT_CUT = 2, STDERR_CUT = 4, VALUE_CUT = 8, USED_UP = 16, AT_LIMIT = 32, PARTIAL = 64 };
enum { MAX_CODE = 25 << 20, MAX_STDIN = 32 << 20, MAX_OUTPUT = (16 << 20) + 1, NUM_STREAMS = 3, VALUE_FD = 3 };
enum { OLD_NICE = 19 };

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void *map_memory(size_t length, int inherited)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        _exit(111);
    if (!inherited)
        madvise(memory, length, MADV_DONTFORK);
    return memory;
}

/* ---- rebase ---- */

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

struct region {
    uintptr_t start, end;
    int protection;
    size_t offset; /* in the image */
};

/* The regions of the image; this table itself is not part of the image. */
static struct region *image_regions;
static int num_image_regions;

/* Collects the private readable mappings except those that contain `skip_a` or `skip_b`, and in `code` the adjacent
 * read-only mappings around the interpreter's code. */
static int parse_maps(char *text, uintptr_t skip_a, uintptr_t skip_b, struct region *regions, int max_regions,
                      struct region *code)
{
    int n = 0;
    struct region fixed = {0};
    for (char *line = text; *line;) {
        char *newline = strchr(line, '\n');
        if (!newline)
            break;
        *newline = 0;
        unsigned long start, end;
        char mode[8];
        if (sscanf(line, "%lx-%lx %7s", &start, &end, mode) == 3) {
            int protection = (mode[0] == 'r' ? PROT_READ : 0) | (mode[1] == 'w' ? PROT_WRITE : 0) |
                             (mode[2] == 'x' ? PROT_EXEC : 0);
            int special = strstr(line, "[stack]") || strstr(line, "[v") || mode[3] != 'p' || !(protection & PROT_READ);
            int ours = (start <= skip_a && skip_a < end) || (start <= skip_b && skip_b < end);
            if (special || ours || protection & PROT_WRITE)
                fixed = (struct region){0};
            else
                fixed = (struct region){fixed.end == start ? fixed.start : start, end, protection, 0};
            if (fixed.start <= (uintptr_t)PyObject_Malloc && (uintptr_t)PyObject_Malloc < fixed.end)
                *code = fixed;
            if (!special && !ours) {
                /* Neighbours become one mapping: fewer mappings, cheaper forks. */
                if (n && regions[n - 1].end == start) {
                    regions[n - 1].end = end;
                    regions[n - 1].protection |= protection;
                } else {
                    if (n == max_regions)
                        return -1;
                    regions[n++] = (struct region){start, end, protection, 0};
                }
            }
        }
        line = newline + 1;
    }
    return n;
}

static int may_map_writable_code(int fd)
{
    void *probe = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE, fd, 0);
    if (probe == MAP_FAILED)
        return 0;
    munmap(probe, 4096);
    return 1;
}

/* Leaves each size class of Python's allocator at the start of a pool that nobody else is in: what a program allocates
 * then is on one page with the pool's head, and not wherever the libraries left a gap. The blocks that fill the gaps
 * are never given back; where pools look different from what is expected here, they are MOST_WASTED bytes a class. */
static void settle_heap(void)
{
    enum { POOL = 1 << 14, POOL_HEAD = 48, CLASS_STEP = 16, LARGEST_CLASS = 512, MOST_WASTED = 1 << 18 };
    PyGC_Collect(); /* empties the free lists, which lead all over the heap */
    for (size_t size = CLASS_STEP; size <= LARGEST_CLASS; size += CLASS_STEP)
        for (size_t used = 0; used < MOST_WASTED; used += size) {
            void *block = PyObject_Malloc(size);
            if (!block || (uintptr_t)block % POOL == POOL_HEAD)
                break;
        }
}

/* Backs the interpreter's code in the image with huge pages. */
static void merge_code(int image, const struct region *regions, int num_regions, const struct region *code)
{
    uintptr_t start = (code->start + HUGE_PAGE - 1) & -(uintptr_t)HUGE_PAGE, end = code->end & -(uintptr_t)HUGE_PAGE;
    for (int i = 0; i < num_regions && start < end; i++) {
        if (start < regions[i].start || end > regions[i].end)
            continue;
        char *space = mmap(NULL, end - start + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (space == MAP_FAILED)
            return;
        char *aligned = (char *)(((uintptr_t)space + HUGE_PAGE - 1) & -(uintptr_t)HUGE_PAGE);
        if (mmap(aligned, end - start, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, image,
                 regions[i].offset + (start - regions[i].start)) != MAP_FAILED)
            madvise(aligned, end - start, MADV_COLLAPSE);
        munmap(space, end - start + HUGE_PAGE);
    }
}

static PyObject *rebase(PyObject *self, PyObject *args)
{
    int maps_fd;
    if (!PyArg_ParseTuple(args, "i", &maps_fd))
        return NULL;
    settle_heap();
    const size_t text_len = 8 << 20;
    const int max_regions = 1 << 15;
    char *text = mmap(NULL, text_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct region *regions = mmap(NULL, sizeof *regions * max_regions, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (text == MAP_FAILED || regions == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    int image = memfd_create("template", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (image < 0 || ftruncate(image, 4096) || !may_map_writable_code(image)) {
        if (image >= 0)
            close(image);
        PyErr_SetString(PyExc_OSError, "memory that is both writable and executable is refused here");
        return NULL;
    }
    size_t used = 0;
    ssize_t got;
    while (used < text_len - 1 && (got = read(maps_fd, text + used, text_len - 1 - used)) > 0)
        used += got;
    text[used] = 0;
    struct region code = {0};
    int num_regions = parse_maps(text, (uintptr_t)text, (uintptr_t)regions, regions, max_regions, &code);
    size_t total = 0;
    for (int i = 0; i < num_regions; i++) {
        /* A huge page needs the same offset, modulo its size, in the file and in memory. */
        regions[i].offset = total + ((regions[i].start - total) & (HUGE_PAGE - 1));
        total = regions[i].offset + (regions[i].end - regions[i].start);
    }
    total = (total + HUGE_PAGE - 1) & -(size_t)HUGE_PAGE;
    if (num_regions <= 0 || ftruncate(image, total)) {
        close(image);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    /* All copies first: a full disk or memory limit must leave the template as it was. */
    for (int i = 0; i < num_regions; i++) {
        size_t length = regions[i].end - regions[i].start;
        for (size_t done = 0; done < length;) {
            ssize_t written = pwrite(image, (char *)regions[i].start + done, length - done, regions[i].offset + done);
            if (written <= 0) {
                if (errno == EFAULT) { /* a page past the end of its file: no content to keep */
                    done += PAGE;
                    continue;
                }
                close(image);
                return PyErr_SetFromErrno(PyExc_OSError);
            }
            done += written;
        }
    }
    merge_code(image, regions, num_regions, &code);
    /* From the first copy on, only the stack may change: otherwise the image would not equal the memory it replaces. */
    volatile int failed = 0;
    for (int i = 0; i < num_regions; i++) {
        size_t length = regions[i].end - regions[i].start;
        if (syscall(SYS_mmap, regions[i].start, length, regions[i].protection, MAP_PRIVATE | MAP_FIXED, image,
                    regions[i].offset) != (long)regions[i].start)
            failed = 1;
    }
    fcntl(image, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    close(image);
    munmap(text, text_len);
    /* The table was in shared memory so as not to be part of the image; forks need a private copy. */
    image_regions = map_memory(sizeof *regions * num_regions, 1);
    memcpy(image_regions, regions, sizeof *regions * num_regions);
    munmap(regions, sizeof *regions * max_regions);
    num_image_regions = num_regions;
    if (failed)
        _exit(112); /* half of the memory is replaced: nothing can be trusted any more */
    return PyLong_FromSize_t(total);
}

/* While the returned descriptor is open, a read fault in the image maps one page and not its neighbours. Watching for
 * write protection has this side effect, and none other here: nothing is ever protected. -1 where the kernel refuses. */
static int exact_faults(const struct region *regions, int num_regions)
{
    int watch = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (watch < 0 || ioctl(watch, UFFDIO_API, &api)) {
        if (watch >= 0)
            close(watch);
        return -1;
    }
    for (int i = 0; i < num_regions; i++) {
        struct uffdio_register part = {
            .range = {regions[i].start, regions[i].end - regions[i].start},
            .mode = UFFDIO_REGISTER_MODE_WP,
        };
        ioctl(watch, UFFDIO_REGISTER, &part); /* a part that is refused is merely mapped more generously */
    }
    return watch;
}

/* Pins the pages of the image and the stack that this process has written. A fork must copy pinned pages there and
 * then, since whoever pinned them has the original; so a child does not fault on them one by one. They stay pinned as
 * long as `ring` is open, on which nothing is ever submitted. `pagemap` is this process's own. */
static void pin_written(int ring, int pagemap, const struct region *regions, int num_regions)
{
    enum { CHUNK = 4096, MAX_RUNS = 1024, STACK_PAGES = 16 }; /* the kernel takes 2^14 buffers at most */
    uint64_t *entries = map_memory(CHUNK * sizeof *entries, 0);
    struct iovec *runs = map_memory(MAX_RUNS * sizeof *runs, 0);
    int num_runs = 0;
    uintptr_t top = ((uintptr_t)__builtin_frame_address(0) & -(uintptr_t)PAGE) + PAGE;
    const struct region stack = {top - STACK_PAGES * PAGE, top, 0, 0};
    for (int i = 0; i <= num_regions; i++) {
        const struct region *part = i < num_regions ? &regions[i] : &stack;
        for (uintptr_t at = part->start; at < part->end; at += CHUNK * PAGE) {
            size_t num_pages = (part->end - at) / PAGE < CHUNK ? (part->end - at) / PAGE : CHUNK;
            ssize_t got = pread(pagemap, entries, num_pages * sizeof *entries, at / PAGE * sizeof *entries);
            for (ssize_t page = 0; page < got / (ssize_t)sizeof *entries; page++) {
                const int is_present = entries[page] >> 63 & 1, is_of_file = entries[page] >> 61 & 1;
                char *address = (char *)at + page * PAGE;
                if (!is_present || is_of_file)
                    continue;
                if (num_runs && (char *)runs[num_runs - 1].iov_base + runs[num_runs - 1].iov_len == address)
                    runs[num_runs - 1].iov_len += PAGE;
                else if (num_runs < MAX_RUNS)
                    runs[num_runs++] = (struct iovec){address, PAGE};
            }
        }
    }
    syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, runs, num_runs);
    munmap(entries, CHUNK * sizeof *entries);
    munmap(runs, MAX_RUNS * sizeof *runs);
}

/* ---- messages ---- */

enum { MAX_FDS = 4, MAX_MESSAGE = 64, GOODBYE_BYTES = 1 };

static ssize_t receive_with_fds(int socket, char *message, int *fds, int *num_fds)
{
    union {
        char space[CMSG_SPACE(sizeof(int) * MAX_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec part = {message, MAX_MESSAGE};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control};
    ssize_t got;
    do
        got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    *num_fds = 0;
    struct cmsghdr *attached = CMSG_FIRSTHDR(&header);
    if (attached && attached->cmsg_level == SOL_SOCKET && attached->cmsg_type == SCM_RIGHTS) {
        *num_fds = (attached->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(attached), sizeof(int) * *num_fds);
    }
    return got;
}

/* ---- slots ---- */

static int receive_all(int socket, void *buffer, size_t length)
{
    for (char *at = buffer; length;) {
        ssize_t got = recv(socket, at, length, MSG_WAITALL);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        at += got;
        length -= got;
    }
    return 0;
}

static int send_all(int socket, struct iovec *parts, int num_parts)
{
    while (num_parts) {
        ssize_t sent = writev(socket, parts, num_parts); /* SIGPIPE is ignored; sendmsg would be refused */
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        while (num_parts && (size_t)sent >= parts->iov_len) {
            sent -= parts->iov_len;
            parts++;
            num_parts--;
        }
        if (num_parts) {
            parts->iov_base = (char *)parts->iov_base + sent;
            parts->iov_len -= sent;
        }
    }
    return 0;
}

struct stream {
    int fd;
    char *buffer;
    uint32_t length, limit;
    int cut;
};

/* Reads the available output. Returns 0 when all writers have closed the pipe. */
static int drain(struct stream *stream)
{
    for (;;) {
        uint32_t room = stream->limit - stream->length;
        char overflow;
        ssize_t got = room ? read(stream->fd, stream->buffer + stream->length, room) : read(stream->fd, &overflow, 1);
        if (got < 0)
            return errno == EAGAIN || errno == EINTR;
        if (got == 0)
            return 0;
        if (!room) {
            stream->cut = 1;
            return 1;
        }
        stream->length += got;
    }
}

/* Writes as much as the pipe accepts; closes it and returns -1 when all is written or the reader has closed it. */
static int feed(int fd, const char *data, size_t length, size_t *done)
{
    while (*done < length) {
        ssize_t sent = write(fd, data + *done, length - *done);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            return fd;
        if (sent < 0)
            break;
        *done += sent;
    }
    close(fd);
    return -1;
}

static void limit(int kind, rlim_t soft, rlim_t hard)
{
    struct rlimit value;
    if (getrlimit(kind, &value))
        _exit(115);
    value.rlim_max = hard < value.rlim_max ? hard : value.rlim_max; /* a lower limit of the machine holds */
    value.rlim_cur = soft < value.rlim_max ? soft : value.rlim_max;
    if (setrlimit(kind, &value))
        _exit(115);
}

/* Reseed a Mersenne twister in place: as good as its own seed function and a tenth of its cost. */
struct twister {
    uint32_t *words;
    int *position;
};
enum { TWISTER_WORDS = 624, MAX_TWISTERS = 4 };

static void reseed(const struct twister *twisters, int num_twisters)
{
    uint64_t state;
    if (getrandom(&state, sizeof state, 0) != sizeof state)
        _exit(123);
    for (int t = 0; t < num_twisters; t++) {
        for (int i = 0; i < TWISTER_WORDS; i++) { /* splitmix64 */
            uint64_t z = state += 0x9E3779B97F4A7C15u;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
            twisters[t].words[i] = (uint32_t)(z >> 32);
        }
        *twisters[t].position = TWISTER_WORDS;
    }
}

struct slot {
    int socket, uid, pid_namespace;
    int last_pid_fd; /* resets the numbering of processes; -1 if not allowed */
    uint64_t base_data_bytes, base_address_bytes;
    PyObject *run;
    struct twister twisters[MAX_TWISTERS];
    int num_twisters;
    char *code, *input;
    struct stream streams[NUM_STREAMS];
    struct stat scratch_stat;
    long scratch_files;
    struct sigaction interrupt; /* Python's SIGINT handler, for programs only: they must not interrupt the slot */
};

static void run_child(struct slot *slot, const struct request *request, int stdin_fd, int *write_ends)
{
    setsid();
    sigaction(SIGINT, &slot->interrupt, NULL);
    dup2(stdin_fd, 0);
    for (int i = 0; i < NUM_STREAMS; i++)
        dup2(write_ends[i], i + 1);
    fcntl(VALUE_FD, F_SETFD, FD_CLOEXEC);
    syscall(SYS_close_range, VALUE_FD + 1, ~0u, 0);
    limit(RLIMIT_CPU, request->cpu_s, request->cpu_s + 1);
    limit(RLIMIT_FSIZE, request->file_bytes, request->file_bytes);
    limit(RLIMIT_NPROC, request->num_processes, request->num_processes);
    limit(RLIMIT_DATA, slot->base_data_bytes + request->data_bytes, slot->base_data_bytes + request->data_bytes);
    if (request->address_bytes)
        limit(RLIMIT_AS, slot->base_address_bytes + request->address_bytes,
              slot->base_address_bytes + request->address_bytes);
    if (slot->uid >= 0 && (syscall(SYS_setresgid, slot->uid, slot->uid, slot->uid) ||
                           syscall(SYS_setresuid, slot->uid, slot->uid, slot->uid)))
        _exit(116);
    reseed(slot->twisters, slot->num_twisters);
    PyObject *result = PyObject_CallFunction(slot->run, "y#", slot->code, (Py_ssize_t)request->code_len);
    long code = result && PyLong_Check(result) ? PyLong_AsLong(result) : 117;
    _exit((int)code);
}

static int scratch_is_dirty(const struct slot *slot)
{
    struct stat stat_now;
    struct statfs usage;
    if (stat(".", &stat_now) || statfs(".", &usage))
        return 1;
    const struct stat *before = &slot->scratch_stat;
    return (long)(usage.f_files - usage.f_ffree) != slot->scratch_files || stat_now.st_mode != before->st_mode ||
           stat_now.st_mtim.tv_sec != before->st_mtim.tv_sec || stat_now.st_mtim.tv_nsec != before->st_mtim.tv_nsec ||
           stat_now.st_ctim.tv_sec != before->st_ctim.tv_sec || stat_now.st_ctim.tv_nsec != before->st_ctim.tv_nsec;
}

static int64_t children_cpu_us(void)
{
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000ll + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

/* The next process id of this namespace, found by making a process that shares our memory and exits at once. */
static pid_t newest_pid(void)
{
    pid_t pid = vfork();
    if (pid == 0)
        _exit(0);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return pid;
}

/* Kills and reaps the child, unless it was reaped, and all that it left behind. */
static void end_all(const struct slot *slot, pid_t child, int *status, struct rusage *used)
{
    /* kill(-1) reaches all of the slot's process namespace at once: no fork can slip through it. It also looks at every
     * process of the machine, so it is not for each execution. */
    if (slot->pid_namespace)
        kill(-1, SIGKILL);
    else {
        kill(-child, SIGKILL);
        kill(child, SIGKILL);
    }
    while (wait4(child, status, __WALL, used) < 0 && errno == EINTR)
        ;
    if (slot->pid_namespace)
        while (wait4(-1, NULL, __WALL, NULL) > 0 || errno == EINTR)
            ;
}

/* Asks the caller, who can see what the program waited for, whether the program may continue; MORE_TIME answers. */
static void ask_for_time(const struct slot *slot, int64_t elapsed_us)
{
    struct reply question = {.flags = AT_LIMIT, .wall_us = elapsed_us};
    struct iovec part = {&question, sizeof question};
    send_all(slot->socket, &part, 1); /* a caller that is gone is seen by the next poll */
}

/* Sends the caller the new output on stdout and stderr. */
static void pass_on(const struct slot *slot, uint32_t *passed_on, int64_t elapsed_us)
{
    const struct stream *streams = slot->streams;
    struct reply part = {.flags = PARTIAL,
                         .stdout_len = streams[0].length - passed_on[0],
                         .stderr_len = streams[1].length - passed_on[1],
                         .wall_us = elapsed_us};
    struct iovec parts[3] = {{&part, sizeof part},
                             {streams[0].buffer + passed_on[0], part.stdout_len},
                             {streams[1].buffer + passed_on[1], part.stderr_len}};
    passed_on[0] = streams[0].length;
    passed_on[1] = streams[1].length;
    send_all(slot->socket, parts, 3);
}

/* Runs one request; returns 0, or -1 if the caller is gone. */
static int execute(struct slot *slot, const struct request *request, struct reply *reply)
{
    int input[2], output[NUM_STREAMS][2];
    if (pipe2(input, O_CLOEXEC))
        _exit(118);
    int write_ends[NUM_STREAMS];
    for (int i = 0; i < NUM_STREAMS; i++) {
        if (pipe2(output[i], O_CLOEXEC))
            _exit(118);
        fcntl(output[i][0], F_SETFL, O_NONBLOCK);
        write_ends[i] = output[i][1];
        slot->streams[i].fd = output[i][0];
        slot->streams[i].length = 0;
        slot->streams[i].limit = i + 1 == VALUE_FD ? request->value_bytes : request->output_bytes;
        slot->streams[i].cut = 0;
    }
    int64_t started = now_us(), cpu_before = children_cpu_us();
    /* Process ids that count earlier programs' processes would be a channel between programs. */
    if (slot->last_pid_fd >= 0 && pwrite(slot->last_pid_fd, "1", 1, 0) != 1)
        _exit(124);
    pid_t child = _Fork();
    if (child == 0)
        run_child(slot, request, input[0], write_ends);
    memset(slot->code, 0, request->code_len);
    close(input[0]);
    for (int i = 0; i < NUM_STREAMS; i++)
        close(write_ends[i]);
    if (child < 0)
        _exit(119);

    fcntl(input[1], F_SETFL, O_NONBLOCK);
    size_t fed = 0;
    int input_fd = feed(input[1], slot->input, request->stdin_len, &fed);
    int child_fd = syscall(SYS_pidfd_open, child, 0);
    int64_t last = started + request->longest_ms * 1000ll, old_at = started + request->young_ms * 1000ll;
    int64_t ask_at = started + request->wall_ms * 1000ll; /* 0 while the answer is awaited */
    int64_t pass_on_at = 0, passed_on_at = 0;             /* 0: nothing to pass on */
    uint32_t passed_on[2] = {0, 0};
    enum { CHILD, CALLER, STDIN, FIRST_STREAM, NUM_POLLED = FIRST_STREAM + NUM_STREAMS };
    struct pollfd polled[NUM_POLLED] = {
        [CHILD] = {child_fd, POLLIN, 0}, [CALLER] = {slot->socket, POLLIN | POLLRDHUP, 0}, [STDIN] = {input_fd, POLLOUT, 0}};
    for (int i = 0; i < NUM_STREAMS; i++)
        polled[FIRST_STREAM + i] = (struct pollfd){output[i][0], POLLIN, 0};
    int caller_gone = 0, flags = 0;
    for (;;) {
        int64_t now = now_us();
        if (now >= last) {
            flags |= TIMED_OUT;
            break;
        }
        if (ask_at && now >= ask_at) {
            ask_for_time(slot, now - started);
            ask_at = 0;
        }
        if (old_at && now >= old_at) {
            /* The program had its time at full share; from here on shorter programs go first. */
            setpriority(slot->uid >= 0 ? PRIO_USER : PRIO_PGRP, slot->uid >= 0 ? slot->uid : child, OLD_NICE);
            old_at = 0;
        }
        if (pass_on_at && now >= pass_on_at) {
            pass_on(slot, passed_on, now - started);
            passed_on_at = now;
            pass_on_at = 0;
        }
        int64_t until = ask_at && ask_at < last ? ask_at : last;
        if (old_at && old_at < until)
            until = old_at;
        if (pass_on_at && pass_on_at < until)
            until = pass_on_at;
        if (poll(polled, NUM_POLLED, (int)((until - now) / 1000) + 1) < 0 && errno != EINTR)
            _exit(120);
        if (polled[CALLER].revents) {
            uint32_t more_ms;
            caller_gone = ask_at || receive_all(slot->socket, &more_ms, sizeof more_ms);
            if (caller_gone)
                break;
            ask_at = now_us() + more_ms * 1000ll;
            if (!more_ms) {
                flags |= TIMED_OUT;
                break;
            }
        }
        if (polled[STDIN].revents)
            polled[STDIN].fd = feed(input[1], slot->input, request->stdin_len, &fed);
        for (int i = 0; i < NUM_STREAMS; i++)
            if (polled[FIRST_STREAM + i].revents && !drain(&slot->streams[i]))
                polled[FIRST_STREAM + i].fd = -1;
        if (slot->streams[0].cut || slot->streams[1].cut || slot->streams[2].cut)
            break;
        if (polled[CHILD].revents)
            break;
        if (request->stream_ms && !pass_on_at &&
            (slot->streams[0].length > passed_on[0] || slot->streams[1].length > passed_on[1]))
            pass_on_at = passed_on_at + request->stream_ms * 1000ll;
    }
    int status = 0;
    struct rusage used = {0};
    /* A process that outlives the child is our child or descends from one; without children, none is left. */
    int is_empty = slot->pid_namespace && wait4(child, &status, __WALL | WNOHANG, &used) == child &&
                   wait4(-1, NULL, __WALL | WNOHANG, NULL) < 0 && errno == ECHILD;
    if (!is_empty)
        end_all(slot, child, &status, &used);
    for (int i = 0; i < NUM_STREAMS; i++) {
        if (!slot->streams[i].cut)
            drain(&slot->streams[i]);
        close(output[i][0]);
        if (slot->streams[i].cut)
            flags |= STDOUT_CUT << i;
    }
    if (polled[STDIN].fd >= 0)
        close(input[1]);
    close(child_fd);
    if (scratch_is_dirty(slot) || (slot->pid_namespace && slot->last_pid_fd < 0 && newest_pid() != child + 1))
        flags |= USED_UP;
    uint32_t unneeded; /* the answer to a question that came before the program ended */
    if (!ask_at && !caller_gone)
        caller_gone = receive_all(slot->socket, &unneeded, sizeof unneeded) != 0;
    *reply = (struct reply){status, flags, slot->streams[0].length, slot->streams[1].length, slot->streams[2].length,
                            (uint32_t)used.ru_maxrss, now_us() - started, children_cpu_us() - cpu_before};
    return caller_gone ? -1 : 0;
}

static int take_twisters(struct slot *slot, PyObject *pairs)
{
    Py_ssize_t count = PyTuple_Check(pairs) ? PyTuple_GET_SIZE(pairs) : -1;
    if (count < 0 || count > MAX_TWISTERS)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        unsigned long long words, position;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(pairs, i), "KK", &words, &position))
            return -1;
        slot->twisters[i] = (struct twister){(uint32_t *)(uintptr_t)words, (int *)(uintptr_t)position};
    }
    slot->num_twisters = (int)count;
    return 0;
}

/* Answers requests until the caller is gone or a program has left a trace: files, or the ids of its processes. */
static void serve(struct slot *slot)
{
    slot->code = map_memory(MAX_CODE, 1);
    slot->input = map_memory(MAX_STDIN, 0);
    for (int i = 0; i < NUM_STREAMS; i++)
        slot->streams[i].buffer = map_memory(MAX_OUTPUT, 0);
    struct statfs usage;
    if (stat(".", &slot->scratch_stat) || statfs(".", &usage))
        _exit(121);
    slot->scratch_files = usage.f_files - usage.f_ffree;
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGINT, &ignore, &slot->interrupt);

    struct request request;
    struct reply reply;
    while (!receive_all(slot->socket, &request, sizeof request)) {
        if (request.code_len > MAX_CODE || request.stdin_len > MAX_STDIN || request.output_bytes > MAX_OUTPUT ||
            request.value_bytes > MAX_OUTPUT)
            _exit(122);
        if (receive_all(slot->socket, slot->code, request.code_len) ||
            receive_all(slot->socket, slot->input, request.stdin_len))
            break;
        if (execute(slot, &request, &reply))
            break;
        struct iovec parts[1 + NUM_STREAMS] = {{&reply, sizeof reply}};
        for (int i = 0; i < NUM_STREAMS; i++)
            parts[1 + i] = (struct iovec){slot->streams[i].buffer, slot->streams[i].length};
        if (send_all(slot->socket, parts, 1 + NUM_STREAMS))
            break;
        for (int i = 0; i < NUM_STREAMS; i++)
            if (slot->streams[i].length > 1 << 16)
                madvise(slot->streams[i].buffer, MAX_OUTPUT, MADV_DONTNEED);
        if (request.stdin_len > 1 << 16)
            madvise(slot->input, MAX_STDIN, MADV_DONTNEED);
        if (request.code_len > 1 << 16)
            madvise(slot->code, MAX_CODE, MADV_DONTNEED);
        if (reply.flags & USED_UP)
            break;
    }
}

static void install_filter(PyObject *filter)
{
    struct sock_fprog program = {PyBytes_GET_SIZE(filter) / sizeof(struct sock_filter),
                                 (struct sock_filter *)PyBytes_AS_STRING(filter)};
    if (program.len &&
        (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)))
        _exit(114);
}

/* Confines the slot, resets its memory to the image, rehearses, serves. Does not return to Python. */
static void run_slot(PyObject *slot_main, PyObject *rehearse, PyObject *filter, int proc, struct slot *slot,
                     const char *message, ssize_t length, const int *fds, int num_fds)
{
    /* Copies on the stack: the globals are in the image and are reset with it. */
    const struct region *regions = image_regions;
    const int num_regions = num_image_regions;
    signal(SIGCHLD, SIG_DFL);
    /* Opened before the privilege to open them is dropped. A session's slot, whose kind is not 0, never returns from
     * slot_main and must not keep such descriptors. */
    const int tends_image = num_regions && message[0] == 0;
    struct io_uring_params unused = {0};
    int watch = tends_image ? exact_faults(regions, num_regions) : -1;
    int ring = tends_image ? (int)syscall(SYS_io_uring_setup, 1, &unused) : -1;
    int pagemap = tends_image ? openat(proc, "self/pagemap", O_RDONLY | O_CLOEXEC) : -1;
    slot->last_pid_fd = message[0] == 0 ? openat(proc, "sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC) : -1;
    PyObject *list = PyTuple_New(num_fds);
    for (int i = 0; i < num_fds; i++)
        PyTuple_SET_ITEM(list, i, PyLong_FromLong(fds[i]));
    PyObject *settings = PyObject_CallFunction(slot_main, "y#O", message, length, list);
    unsigned long long base_data, base_address;
    if (!settings || !PyArg_ParseTuple(settings, "iipKK", &slot->socket, &slot->uid, &slot->pid_namespace, &base_data,
                                       &base_address)) {
        PyErr_Print();
        _exit(113);
    }
    if (slot->last_pid_fd >= 0 && pwrite(slot->last_pid_fd, "1", 1, 0) != 1) {
        close(slot->last_pid_fd);
        slot->last_pid_fd = -1;
    }
    slot->base_data_bytes = base_data;
    slot->base_address_bytes = base_address;
    /* Reset to the image: the interpreter is again as it was inside rebase(), and can be called. */
    for (int i = 0; i < num_regions; i++)
        madvise((void *)regions[i].start, regions[i].end - regions[i].start, MADV_DONTNEED);
    PyObject_CallNoArgs(rehearse);
    reseed(slot->twisters, slot->num_twisters); /* writes the pages that each child will write */
    if (watch >= 0)
        close(watch);
    if (ring >= 0 && pagemap >= 0)
        pin_written(ring, pagemap, regions, num_regions);
    if (pagemap >= 0)
        close(pagemap);
    install_filter(filter);
    serve(slot);
}

/* park(control_fd, proc_fd, new_namespaces, slot_main, filter, rehearse, run, twisters)
 *
 * Forks a slot for each message, with `new_namespaces` as the init of a new process namespace, and answers with its
 * process id or minus an errno. Returns true if asked to end, false if the host has exited. *
 * slot_main(message, fds) confines the slot, except for the system-call filter, and returns (socket, uid, whether
 * it has a process namespace, the interpreter's own bytes of data and address space); uid < 0: keep the current uid.
 * The slot rehearses, installs the filter (empty: none) and serves: run(source) is called in a child for each
 * request. `twisters` are the addresses of words and position of each generator to reseed. */
static PyObject *park(PyObject *self, PyObject *args)
{
    int control, proc, new_namespaces;
    PyObject *slot_main, *filter, *rehearse, *twisters;
    struct slot *slot = map_memory(sizeof *slot, 1);
    if (!PyArg_ParseTuple(args, "iipOSOOO", &control, &proc, &new_namespaces, &slot_main, &filter, &rehearse,
                          &slot->run, &twisters) ||
        take_twisters(slot, twisters))
        return NULL;
    /* No process reaps slots: their sockets report their end. Set here and not in Python, whose own table of handlers
     * is part of the image and must hold the programs' handlers. */
    signal(SIGCHLD, SIG_IGN);
    char message[MAX_MESSAGE];
    int fds[MAX_FDS], num_fds;
    for (;;) {
        ssize_t length = receive_with_fds(control, message, fds, &num_fds);
        if (length == GOODBYE_BYTES)
            Py_RETURN_TRUE;
        if (length <= 0)
            break;
        struct {
            uint32_t serial;
            int32_t pid;
        } answer = {0};
        if (length >= (ssize_t)sizeof answer.serial) /* the serial number is the message's last field */
            memcpy(&answer.serial, message + length - sizeof answer.serial, sizeof answer.serial);
        /* The C library does not see a raw clone; it sees the slot's own forks, which run the programs. */
        pid_t pid = new_namespaces ? (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0) : _Fork();
        if (pid == 0) {
            close(control);
            run_slot(slot_main, rehearse, filter, proc, slot, message, length, fds, num_fds);
            _exit(0);
        }
        answer.pid = pid > 0 ? pid : -errno;
        for (int i = 0; i < num_fds; i++)
            close(fds[i]);
        if (send(control, &answer, sizeof answer, MSG_NOSIGNAL) < 0)
            break;
    }
    Py_RETURN_FALSE;
}

static PyObject *latest_pid(PyObject *self, PyObject *unused)
{
    pid_t pid = newest_pid();
    return pid < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(pid);
}

/* Forks a sibling: a child of our parent, which alone reaps it. One fork, where a grandchild would take two. Only for a
 * process with one thread, since a raw clone takes no locks of the C library; it sets the thread's id as fork does. The
 * interpreter's fork handlers are skipped: they treat locks and states of other threads, and run hooks that are meant
 * for the program's own forks. Returns None if there are other threads. */
static PyObject *fork_sibling(PyObject *self, PyObject *args)
{
    unsigned long long tid_address;
    if (!PyArg_ParseTuple(args, "K", &tid_address))
        return NULL;
    if (PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())))
        Py_RETURN_NONE;
    const unsigned long flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
    pid_t pid = (pid_t)syscall(SYS_clone, flags, 0, 0, tid_address, 0);
    return pid < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(pid);
}

/* The address of the C library's record of this thread's id, the same in all forks; 0 if the kernel does not tell. */
static PyObject *tid_address(PyObject *self, PyObject *unused)
{
    int *address = NULL;
    if (prctl(PR_GET_TID_ADDRESS, &address, 0, 0, 0) || !address || *address != (int)syscall(SYS_gettid))
        address = NULL;
    return PyLong_FromUnsignedLongLong((uintptr_t)address);
}

static PyMethodDef methods[] = {
    {"fork_sibling", fork_sibling, METH_VARARGS, "Fork a child of our parent; 0 in the child, None if there are other threads."},
    {"tid_address", tid_address, METH_NOARGS, "Where the C library keeps the id of this thread; 0: unknown."},
    {"rebase", rebase, METH_VARARGS, "Move all private memory into one sealed file mapping; returns its size."},
    {"park", park, METH_VARARGS, "Fork a slot for each message until the other side is gone."},
    {"latest_pid", latest_pid, METH_NOARGS, "The newest process id of this namespace, taken and given back."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_fork", "The fast path of the sandbox.", -1, methods};

PyMODINIT_FUNC PyInit__fork(void)
{
    return PyModule_Create(&definition);
}
