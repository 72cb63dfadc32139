"""The command line: one verb a file, heavy imports inside the verbs so that `--help` is instant.

May import: everything.
"""
