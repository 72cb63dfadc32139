"""Which language a text is in, by langdetect, which IFEval's own checks use."""

import importlib
from typing import Any

from rstar2.errors import UserError


def require_langdetect() -> Any:
    try:
        return importlib.import_module("langdetect")
    except ImportError:
        raise UserError(
            "IFEval's checks of a response's language need langdetect: run `pip install 'rstar2[evals]'`"
        ) from None


def is_in_language(text: str, code: str) -> bool:
    """A text whose language cannot be told (digits, signs) passes, as in the original. The detector draws random
    numbers; a fixed seed makes it say the same every time."""
    langdetect = require_langdetect()
    langdetect.DetectorFactory.seed = 0
    try:
        return bool(langdetect.detect(text) == code)
    except langdetect.LangDetectException:
        return True
