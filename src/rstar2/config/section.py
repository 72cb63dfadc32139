"""What all sections of a recipe have in common: frozen, no unknown keys, no silent conversions.

A field that must be given carries one valid example, which the reference shows and which replaces a missing
value while the rest of a faulty file is checked.
"""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)
