"""What isolates a program from the machine: namespaces, cgroups, seccomp, its own file system."""
