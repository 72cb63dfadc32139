"""Runs programs in gVisor, a user-space kernel between a program and the machine's kernel."""
