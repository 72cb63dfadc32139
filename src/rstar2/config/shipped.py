"""The recipes that come with rstar2: `recipes/*.toml` beside the code, each known by its file's name."""

from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class ShippedRecipe:
    name: str
    text: str
    """The TOML file as it was written, with its comments."""

    @property
    def summary(self) -> str:
        """The file's first line, which is a comment that says what the recipe is for."""
        return self.text.partition("\n")[0].removeprefix("#").strip()


@cache
def shipped_recipes() -> dict[str, ShippedRecipe]:
    """All of them by name, in alphabetical order."""
    files = (resources.files("rstar2") / "recipes").iterdir()
    texts = {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files if file.name.endswith(".toml")}
    return {name: ShippedRecipe(name, text) for name, text in sorted(texts.items())}
