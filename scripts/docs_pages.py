"""A hook of MkDocs: the pages of the site that come from the sources, generated at each build.

- README.md, ARCHITECTURE.md, CONTRIBUTING.md and CHANGELOG.md, which are above docs/, with their links put right;
- every command of the command line, at the marker in docs/cli.md;
- every field of a recipe, at the marker in docs/recipe-fields.md;
- one page for each file of examples/;
- one page of the Python API for each folder of src/rstar2 whose `__init__.py` has an `__all__`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from rstar2.cli.main import app
from rstar2.config.explain import as_markdown, explain

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
COMMANDS_MARKER = "<!-- generated: every command -->"
FIELDS_MARKER = "<!-- generated: every field -->"
EXAMPLE_PAGE = "# {name}\n\n```python\n{text}```\n"
API_PAGE = "::: rstar2.{name}\n    options:\n      heading_level: 1\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    fill_menu(config, "Reference", "Python API", [{f"rstar2.{name}": f"api/{name}.md"} for name in public_folders()])
    fill_menu(config, "Tutorials", "Examples", [{path.name: page_of(path)} for path in examples()])
    return config


def fill_menu(config: MkDocsConfig, section: str, title: str, pages: list[dict[str, str]]) -> None:
    entries = next(entry[section] for entry in config.nav or [] if section in entry)
    next(entry for entry in entries if title in entry)[title] = pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, target in ROOT_PAGES.items():
        files.append(File.generated(config, target, content=root_page((ROOT / source).read_text())))
    for path in examples():
        page = EXAMPLE_PAGE.format(name=path.name, text=path.read_text())
        files.append(File.generated(config, page_of(path), content=page))
    for name in public_folders():
        files.append(File.generated(config, f"api/{name}.md", content=API_PAGE.format(name=name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    if page.file.src_uri == "cli.md":
        return with_generated(markdown, COMMANDS_MARKER, commands_page())
    if page.file.src_uri == "recipe-fields.md":
        return with_generated(markdown, FIELDS_MARKER, fields_page())
    if page.file.generated_by is None:
        return docs_page(markdown)
    return markdown


def public_folders() -> list[str]:
    faces = sorted((ROOT / "src" / "rstar2").glob("*/__init__.py"))
    return [face.parent.name for face in faces if "__all__" in face.read_text()]


def examples() -> list[Path]:
    return sorted((ROOT / "examples").glob("**/*.py"))


def page_of(example: Path) -> str:
    return str(example.relative_to(ROOT).with_suffix(".md"))


def root_page(text: str) -> str:
    """A page from above docs/, as it reads inside of it."""
    text = re.sub(r"(\]\(|src=\")docs/", r"\1", text)
    text = re.sub(r"(\]\(examples/[\w/]+)\.py\)", r"\1.md)", text)
    for source, target in ROOT_PAGES.items():
        text = text.replace(f"]({source}", f"]({target}")
    return text


def docs_page(text: str) -> str:
    text = re.sub(r"\]\(\.\./(examples/[\w/]+)\.py\)", r"](\1.md)", text)
    for source, target in ROOT_PAGES.items():
        text = text.replace(f"](../{source}", f"]({target}")
    return text


def with_generated(text: str, marker: str, generated: str) -> str:
    if text.count(marker) != 1:
        raise ValueError(f"the page must hold {marker} once")
    return text.replace(marker, generated)


def fields_page() -> str:
    """What `rstar2 recipe explain --markdown` prints, without its title."""
    return as_markdown(explain()).partition("\n")[2]


def commands_page() -> str:
    return "\n\n".join(section(path, command) for path, command in commands("rstar2", typer.main.get_command(app)))


def commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Depth first; a group comes before its commands."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(f"{path} {name}", inner)


def section(path: str, command: Any) -> str:
    context = command.make_context(path, [], resilient_parsing=True)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    records = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    rows = [f"| `{cell(name)}` | {cell(text).replace('<', '&lt;')} |" for name, text in records]
    table = ["| argument or option | meaning |", "|---|---|", *rows] if rows else []
    return "\n".join([f"## `{path}`", "", command.help or "", "", "```", usage, "```", "", *table])


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
