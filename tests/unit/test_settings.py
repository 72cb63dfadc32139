"""Settings are picked from sections by name, and a name that no section has is never left to a default."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from rstar2.settings import pick

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Wanted:
    lr: float
    size: int = 1


def test_values_come_first_then_the_first_section_that_has_the_name() -> None:
    first, second = SimpleNamespace(lr=0.5), SimpleNamespace(lr=0.1, size=3)
    assert pick(Wanted, first, second) == Wanted(0.5, 3)
    assert pick(Wanted, first, second, size=7) == Wanted(0.5, 7)


def test_a_field_that_no_section_has_is_an_error_with_or_without_a_default() -> None:
    with pytest.raises(TypeError, match="no section of the recipe has size, a field of Wanted"):
        pick(Wanted, SimpleNamespace(lr=0.5))
