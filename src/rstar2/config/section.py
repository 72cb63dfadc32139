"""What all sections of a recipe have in common: frozen, no unknown keys, no silent conversions.

A field that must be given carries one valid example, which the reference shows and which replaces a missing
value while the rest of a faulty file is checked.
"""

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict

from rstar2.extensions import (
    ADVANTAGES,
    ENGINES,
    ENVIRONMENTS,
    FORK_POINTS,
    FORK_POLICIES,
    POLICIES,
    SELECTIONS,
    TREE_ADVANTAGES,
)


class Section(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


SelectionName: TypeAlias = Annotated[str, AfterValidator(SELECTIONS.check), SELECTIONS]
AdvantageName: TypeAlias = Annotated[str, AfterValidator(ADVANTAGES.check), ADVANTAGES]
EnvironmentName: TypeAlias = Annotated[str, AfterValidator(ENVIRONMENTS.check), ENVIRONMENTS]
EngineName: TypeAlias = Annotated[str, AfterValidator(ENGINES.check), ENGINES]
PolicyName: TypeAlias = Annotated[str, AfterValidator(POLICIES.check), POLICIES]
TreeAdvantageName: TypeAlias = Annotated[str, AfterValidator(TREE_ADVANTAGES.check), TREE_ADVANTAGES]
ForkPolicyName: TypeAlias = Annotated[str, AfterValidator(FORK_POLICIES.check), FORK_POLICIES]
ForkPointsName: TypeAlias = Annotated[str, AfterValidator(FORK_POINTS.check), FORK_POINTS]
