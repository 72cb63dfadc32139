"""The reference of all fields of a recipe, made from the models that check it."""

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from rstar2.config.checks import nearest
from rstar2.config.emit import toml_value
from rstar2.config.fields import is_section, type_words, without_none
from rstar2.config.recipe import Recipe
from rstar2.config.section import Section
from rstar2.errors import UserError

_LIST_ENTRY, _SET_NAME = "N", "NAME"
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class FieldHelp:
    """One field, as the reference shows it."""

    key: str
    """Dotted: `train.lr`. N is the number or name of a stage, NAME the name of a data set."""
    type: str
    required: bool
    default: Any
    """The default value; None if the field is required, or off unless given."""
    example: Any
    """A valid value, for what must be given."""
    description: str

    @property
    def default_words(self) -> str:
        if self.required:
            return f"required, e.g. {toml_value(self.example)}"
        return "left out" if self.default is None else toml_value(self.default)


@dataclass(frozen=True, slots=True)
class SectionHelp:
    """One table of a recipe."""

    key: str
    """Dotted like a field's; empty for the recipe itself."""
    header: str
    """The header in a file: `[train]`, `[[stages]]`."""
    description: str
    fields: tuple[FieldHelp, ...]


def explain(query: str = "") -> list[SectionHelp]:
    """The sections and fields that a query names: nothing for all, a section, a dotted key, or a field's bare name."""
    sections = list(_sections(Recipe, "", ""))
    if not query:
        return sections
    wanted = _generic(query.strip("[]"))
    found = [section for section in sections if f"{section.key}.".startswith(f"{wanted}.")]
    if not found:
        found = _with_only(sections, {wanted})
    if not found and "." not in wanted:
        keys = (field.key for section in sections for field in section.fields)
        found = _with_only(sections, {key for key in keys if key.rpartition(".")[2] == wanted})
    if found:
        return found
    known = [name for section in sections for name in (section.key, *(field.key for field in section.fields)) if name]
    meant = nearest(wanted, known)
    hint = f"did you mean {meant}?" if meant else f"sections are {', '.join(s.key for s in sections if s.key)}"
    raise UserError(f"{query} is neither a section nor a key of a recipe; {hint}")


def as_text(sections: Sequence[SectionHelp], width: int = 100) -> str:
    blocks = []
    for section in sections:
        lines = [f"{section.header}  {section.description}".strip()]
        for field in section.fields:
            prefix = "" if field.required else "default: "
            lines += ["", f"  {field.key}  ({field.type}; {prefix}{field.default_words})"]
            lines += textwrap.wrap(
                field.description, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
            )
        blocks.append("\n".join(lines))
    return "\n\n\n".join(blocks)


def as_markdown(sections: Sequence[SectionHelp]) -> str:
    blocks = ["# The fields of a recipe"]
    for section in sections:
        rows = ["| key | type | default | what it does |", "|---|---|---|---|"]
        for field in section.fields:
            default = f"`{field.default_words}`" if field.default is not None else field.default_words
            cells = (f"`{field.key}`", field.type, default, field.description)
            rows.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
        title = f"## `{section.header}`" if section.key else "## Top of the file"
        blocks.append("\n".join([title, "", section.description, "", *rows]))
    return "\n\n".join(blocks)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _with_only(sections: Sequence[SectionHelp], keys: set[str]) -> list[SectionHelp]:
    kept = (replace(section, fields=tuple(f for f in section.fields if f.key in keys)) for section in sections)
    return [section for section in kept if section.fields]


def _generic(query: str) -> str:
    """`stages.concise.steps` and `data.train.source` name the same fields as the reference's `N` and `NAME`."""
    parts = query.split(".")
    stands_for = {"stages": _LIST_ENTRY, "data": _SET_NAME, "environments": _SET_NAME}
    if len(parts) > 1 and parts[0] in stands_for and parts[1] != "difficulty_filter":
        parts[1] = stands_for[parts[0]]
    elif parts[:2] == ["stages", "difficulty_filter"]:
        parts.insert(1, _LIST_ENTRY)
    if "mcp" in parts[:-1]:
        parts[parts.index("mcp") + 1] = _SET_NAME
    return ".".join(parts)


def _sections(model: type[Section], key: str, header: str) -> Iterator[SectionHelp]:
    inner: list[tuple[type[Section], str, str]] = []
    fields: list[FieldHelp] = []
    bare_header = header.strip("[]")
    for name, field in model.model_fields.items():
        field_key = f"{key}.{name}" if key else name
        field_header = f"{bare_header}.{name}" if header else name
        kind = without_none(field.annotation)
        if is_section(kind):
            inner.append((kind, field_key, f"[{field_header}]"))
        elif get_origin(kind) is tuple and is_section(get_args(kind)[0]):
            inner.append((get_args(kind)[0], f"{field_key}.{_LIST_ENTRY}", f"[[{field_header}]]"))
        elif get_origin(kind) is dict and is_section(get_args(kind)[1]):
            inner.append((get_args(kind)[1], f"{field_key}.{_SET_NAME}", f"[{field_header}.{_SET_NAME}]"))
        else:
            fields.append(_field(field_key, field))
    yield SectionHelp(key, header, _summary(model), tuple(fields))
    for section in inner:
        yield from _sections(*section)


def _summary(model: type[Section]) -> str:
    """The class's docstring, without the header that it opens with."""
    text = inspect.cleandoc(model.__doc__ or "").replace("\n", " ")
    summary = text.partition("]`: ")[2] if text.startswith("`[") else text
    return summary[:1].upper() + summary[1:]


def _field(key: str, field: FieldInfo) -> FieldHelp:
    required = field.is_required()
    return FieldHelp(
        key=key,
        type=type_words(field.annotation, field),
        required=required,
        default=None if required else field.default,
        example=field.examples[0] if required and field.examples else None,
        description=field.description or "",
    )
