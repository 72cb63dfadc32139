"""Settings of one part, read from the recipe by name: a value is named in the recipe and where it is used."""

from dataclasses import MISSING, fields
from typing import Any, TypeVar

Settings = TypeVar("Settings")


def pick(kind: type[Settings], *sections: object, **values: Any) -> Settings:
    """A dataclass whose fields are found by name: among `values`, else in the first section that has them. A field that
    is in none of them is a bug, with or without a default."""
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in values:
            found = (getattr(section, field.name, MISSING) for section in sections)
            value = next((value for value in found if value is not MISSING), MISSING)
            if value is MISSING:
                raise TypeError(f"no section of the recipe has {field.name}, a field of {kind.__name__}")
            values[field.name] = value
    return kind(**values)
