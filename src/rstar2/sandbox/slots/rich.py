"""Renders a value as a notebook does, besides its text: HTML, LaTeX, images, and matplotlib's figures.

Runs in the sandboxed child, only if the caller requested rich results. The protocol is IPython's: the methods
`_repr_mimebundle_`, `_repr_html_` and so on, and `display(...)`, which is a builtin here. If the program imports
matplotlib, `show()` and the end of a cell show the open figures and close them.
"""

import base64
import builtins
import importlib.util
import io
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

from rstar2.sandbox.slots.report import MAX_DISPLAY_BYTES, MAX_DISPLAYS, Kind, record

_PYPLOT = "matplotlib.pyplot"
_METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_pdf_": "application/pdf",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}


class Notebook:
    """The displays of one cell, written as records by `write`."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._num_left = MAX_DISPLAYS
        self._bytes_left = MAX_DISPLAY_BYTES
        self._shown_figures: list[object] = []

    def begin(self) -> None:
        global _current
        _current = self
        builtins.display = display  # type: ignore[attr-defined]
        if _PYPLOT in sys.modules:
            sys.modules[_PYPLOT].show = show  # type: ignore[attr-defined]
        elif not any(isinstance(finder, _PyplotFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _PyplotFinder())

    def end(self) -> None:
        global _current
        self.show_figures()
        _current = None

    def show(self, value: object, kind: Kind) -> None:
        """Show a value. Its text comes first, and is the only representation of most values; the text of the last
        expression's value is reported separately."""
        if self._num_left <= 0:
            return
        self._num_left -= 1
        parts = [] if kind == Kind.RESULT else [("text/plain", repr(value))]
        written = record(kind)
        for mime, text in [*parts, *self._representations(value)]:
            data = text.encode("utf-8", "backslashreplace")
            if len(data) <= self._bytes_left:
                self._bytes_left -= len(data)
                written += record(Kind.REPRESENTATION, mime.encode("utf-8", "replace"), data)
        self._write(written)

    def show_figures(self) -> None:
        """Show all open matplotlib figures, and close them."""
        pyplot: Any = sys.modules.get(_PYPLOT)
        if pyplot is None:
            return
        try:
            for number in pyplot.get_fignums():
                figure = pyplot.figure(number)
                if not any(figure is shown for shown in self._shown_figures):
                    self.show(figure, Kind.DISPLAY)
            pyplot.close("all")
        except Exception:
            traceback.print_exc()

    def _representations(self, value: object) -> list[tuple[str, str]]:
        found: dict[str, str] = {}
        if isinstance(value, type):
            return []
        figure: Any = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
        if figure is not None and isinstance(value, figure):
            self._shown_figures.append(value)
            return [("image/png", _as_text(_png_of(value)))]
        bundle = _call_method(value, "_repr_mimebundle_")
        if isinstance(bundle, dict):
            found.update((str(mime), _as_text(data)) for mime, data in bundle.items() if mime != "text/plain")
        for method, mime in _METHODS.items():
            if mime not in found and (data := _call_method(value, method)) is not None:
                found[mime] = json.dumps(data) if method == "_repr_json_" else _as_text(data)
        return list(found.items())


_current: Notebook | None = None
"""The notebook of the running cell; None if its caller did not request rich results."""


def display(*values: object, **_: object) -> None:
    """The `display` builtin of a notebook."""
    for value in values:
        if _current is None:
            print(repr(value))
        else:
            _current.show(value, Kind.DISPLAY)


def show(*_: object, **__: object) -> None:
    """Replaces pyplot's `show`, which has no screen."""
    if _current is not None:
        _current.show_figures()


def _call_method(value: object, method: str) -> object:
    """Call the method; returns its data without metadata, or None if it is missing or fails."""
    try:
        call = getattr(value, method, None)
        data = call() if callable(call) else None
    except Exception:
        return None
    return data[0] if isinstance(data, tuple) and len(data) == 2 else data


def _as_text(data: object) -> str:
    if isinstance(data, bytes):
        return base64.b64encode(data).decode()
    return data if isinstance(data, str) else json.dumps(data, default=repr)


def _png_of(figure: Any) -> bytes:
    image = io.BytesIO()
    figure.savefig(image, format="png", bbox_inches="tight")
    return image.getvalue()


class _PyplotFinder:
    """Replaces pyplot's `show` as soon as the program imports it, whatever backend it chooses."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ARG002
        if name != _PYPLOT:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loaded = spec.loader.exec_module

        def load(module: Any) -> None:
            loaded(module)
            module.show = show

        spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec
