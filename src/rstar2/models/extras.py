"""What of the `train` extra is missing, said before a download and not after it."""

from collections.abc import Sequence
from importlib.util import find_spec

from rstar2.errors import UserError


def require_installed(modules: Sequence[str], purpose: str) -> None:
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise UserError(f"{purpose} needs {', '.join(missing)}: run `pip install 'rstar2[train]'`")
