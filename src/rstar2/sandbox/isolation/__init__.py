"""Isolates programs from the machine: namespaces, cgroups, seccomp, a private file system."""
