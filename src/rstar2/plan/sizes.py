"""How many problems or conversations a recipe's sets hold, as far as that can be seen without loading them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rstar2.config import DataSet, Recipe
from rstar2.data.catalog import CATALOG


def set_size(recipe: Recipe, name: str, given: Mapping[str, int]) -> int | None:
    """Of a set of `[data]` or a benchmark; None where nothing says."""
    if name in given:
        return given[name]
    if name not in recipe.data:
        return CATALOG[name].num_rows if name in CATALOG else None
    spec = recipe.data[name]
    sizes = [size for size in (spec.num_problems, _size_of_source(spec)) if size is not None]
    return min(sizes, default=None)


def total_size(recipe: Recipe, names: Sequence[str], given: Mapping[str, int]) -> tuple[int, tuple[str, ...]]:
    """Of the sets whose size is known, and the names of the others."""
    sizes = {name: set_size(recipe, name, given) for name in names}
    unknown = tuple(name for name, size in sizes.items() if size is None)
    return sum(size for size in sizes.values() if size is not None), unknown


def _size_of_source(spec: DataSet) -> int | None:
    kind, _, rest = spec.source.partition(":")
    if kind == "catalog":
        return CATALOG[rest].num_rows if rest in CATALOG else None
    if kind == "file" and rest.endswith(".jsonl") and Path(rest).expanduser().is_file():
        with Path(rest).expanduser().open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    return None
