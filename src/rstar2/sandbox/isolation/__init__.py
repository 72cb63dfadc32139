"""What keeps a program apart from the machine: namespaces, cgroups, seccomp, its own file system."""
