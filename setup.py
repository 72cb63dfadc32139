"""The one thing pyproject.toml cannot say: the sandbox's fast path is built where a compiler is found, and skipped
where there is none (`rstar2 doctor` tells which)."""

import sys

from setuptools import Extension, setup

fast_path = Extension(
    "rstar2.sandbox.slots._fork", ["src/rstar2/sandbox/slots/_fork.c"], extra_compile_args=["-O2"], optional=True
)

setup(ext_modules=[fast_path] if sys.platform == "linux" else [])
