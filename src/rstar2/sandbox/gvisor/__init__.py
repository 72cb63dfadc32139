"""Executions in gVisor: a kernel of its own, in user space, between a program and the kernel of the machine."""
