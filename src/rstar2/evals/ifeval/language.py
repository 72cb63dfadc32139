"""Words, sentences and the language of a text, by nltk and langdetect, which IFEval's own checks use."""

import functools
import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

from rstar2.errors import UserError

PUNKT = "tokenizers/punkt_tab/english/"
_WORD = re.compile(r"\w+")


@functools.cache
def require_nltk() -> Any:
    """nltk, with the sentence splitter's data: from where nltk looks for them, or from llama-index-core, which has a
    copy. That package is never imported."""
    try:
        nltk = importlib.import_module("nltk")
    except ImportError:
        raise UserError("IFEval's checks count sentences with nltk: run `pip install 'rstar2[evals]'`") from None
    nltk.data.path += _bundled_data()
    try:
        nltk.data.find(PUNKT)
    except LookupError:
        raise UserError(
            "IFEval's checks count sentences with nltk's punkt_tab, which is not here: run `python -m nltk.downloader "
            "punkt_tab`; or, where only a package index can be reached, `pip install --no-deps llama-index-core`, "
            "which holds a copy; or set NLTK_DATA to a folder that has tokenizers/punkt_tab"
        ) from None
    return nltk


def _bundled_data() -> list[str]:
    spec = importlib.util.find_spec("llama_index")
    folders = spec.submodule_search_locations if spec is not None else None
    return [str(Path(folder) / "core" / "_static" / "nltk_cache") for folder in folders or ()]


def count_words(text: str) -> int:
    return len(_WORD.findall(text))


def count_sentences(text: str) -> int:
    return len(require_nltk().sent_tokenize(text))


def capital_words(text: str) -> int:
    return sum(word.isupper() for word in require_nltk().word_tokenize(text))


def require_langdetect() -> Any:
    try:
        return importlib.import_module("langdetect")
    except ImportError:
        raise UserError(
            "IFEval's checks of a response's language need langdetect: run `pip install 'rstar2[evals]'`"
        ) from None


def is_in_language(text: str, code: str) -> bool:
    """A text whose language cannot be detected (digits, signs) passes, as in the original. The detector draws random
    numbers; a fixed seed makes it deterministic."""
    langdetect = require_langdetect()
    langdetect.DetectorFactory.seed = 0
    try:
        return bool(langdetect.detect(text) == code)
    except langdetect.LangDetectException:
        return True
