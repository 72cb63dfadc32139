"""The page's own files, read once from the package; they are served by name or embedded into one file."""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

PAGE, STYLE, ENTRY = "index.html", "style.css", "main"
CONTENT_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([a-z_]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    content_type: str


@cache
def assets() -> dict[str, Asset]:
    """All assets by name. Other names do not exist: no path is ever built from a request."""
    folder = resources.files("rstar2.web") / "static"
    return {
        file.name: Asset(file.read_bytes(), CONTENT_TYPES[file.name.rpartition(".")[2]])
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in CONTENT_TYPES
    }


@cache
def bundled_script() -> str:
    """All modules in one script, each a function, after the modules that it imports."""
    parts: dict[str, str] = {}

    def add(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"modules import each other in a circle: {' '.join(above)} {name}"
        if name in parts:
            return
        source = assets()[f"{name}.js"].body.decode()
        for _, imported in _IMPORT.findall(source):
            add(imported, (*above, name))
        exports = ", ".join(exported for _, exported in _EXPORT.findall(source))
        body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = \2_module;\n", source))
        parts[name] = f"const {name}_module = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();\n"

    add(ENTRY, ())
    return "".join(parts.values())


def source_hash(text: str) -> str:
    """The name of an inline script or style in a content security policy."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
