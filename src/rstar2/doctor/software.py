"""What is installed: the sandbox's fast path and the compiler that builds it, and the optional engines.

Versions come from the packages' metadata, so nothing heavy is imported.
"""

import importlib
import os
import shutil
from collections.abc import Mapping
from importlib import metadata

from rstar2.doctor.check import Check, State
from rstar2.engine.vllm import version as vllm

FAST_PATH_MODULE = "rstar2.sandbox.slots._fork"
COMPILERS = ("cc", "gcc", "clang")

OPTIONAL_PACKAGES: Mapping[str, tuple[str, str]] = {
    "torch": ("train", "the embedded engine and training"),
    "transformers": ("train", "the embedded engine and training"),
    "peft": ("train", "training with LoRA"),
    "huggingface-hub": ("train", "getting models from the hub"),
    "gguf": ("train", "getting the default model without the hub"),
    "mcp": ("mcp", "tools of MCP servers"),
    "vllm": ("vllm", "the vLLM engine"),
    "ray": ("cluster", "more than one machine"),
}
"""Package: the extra that installs it, and what it is for."""


def sandbox_software_checks() -> tuple[Check, ...]:
    fast_path_error = _import_error(FAST_PATH_MODULE)
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", ""), *COMPILERS))), None)
    return fast_path_check(fast_path_error, compiler), compiler_check(compiler, fast_path_error is None)


def fast_path_check(import_error: str | None, compiler: str | None) -> Check:
    if import_error is None:
        return Check("sandbox", "fast path", State.OK, f"{FAST_PATH_MODULE} is built")
    first = "" if compiler else "install a C compiler and the headers of Python, then "
    return Check(
        "sandbox",
        "fast path",
        State.LIMITED,
        f"the portable path is used, which is slower: {import_error}",
        f"{first}install rstar2 again: `pip install --force-reinstall --no-deps rstar2`",
    )


def compiler_check(compiler: str | None, is_fast_path_built: bool) -> Check:
    if compiler:
        return Check("sandbox", "C compiler", State.OK, compiler)
    if is_fast_path_built:
        return Check("sandbox", "C compiler", State.OK, "none, and none is needed: the fast path is built")
    fix = "install one with the headers of Python (Debian: `apt-get install gcc libc6-dev python3-dev`)"
    return Check("sandbox", "C compiler", State.LIMITED, "none", fix)


def package_checks() -> tuple[Check, ...]:
    versions = {package: _version(package) for package in OPTIONAL_PACKAGES} | {"vllm": vllm.installed_version()}
    return tuple(package_check(package, version) for package, version in versions.items())


def package_check(package: str, version: str | None) -> Check:
    extra, purpose = OPTIONAL_PACKAGES[package]
    if package == "vllm" and version is not None and not vllm.is_supported(version):
        found, fix = f"{version}, which {purpose} is not written for", f"it needs {vllm.NEEDED}: `{vllm.EXTRA}`"
        return Check("optional", package, State.MISSING, found, fix)
    if version is not None:
        return Check("optional", package, State.OK, version)
    fix = f"for {purpose}: `pip install 'rstar2[{extra}]'`"
    return Check("optional", package, State.MISSING, "not installed", fix)


def _import_error(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
