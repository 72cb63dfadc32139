"""From what a recipe or a command line says to a folder that can be loaded.

A name of the catalog, or of an agent that comes with this package, always means that; anything else is a path.
`./name` reaches a folder that happens to share such a name. A folder of adapters means its base with the adapters
merged in.
"""

from pathlib import Path

from rstar2.errors import UserError
from rstar2.models.adapter import base_name, is_adapter, merged_folder
from rstar2.models.agents import AGENTS
from rstar2.models.card import read_card
from rstar2.models.catalog import CATALOG, suggestion
from rstar2.models.home import model_folder


def resolve(name_or_path: str | Path) -> Path:
    """The model folder that is meant; a UserError that says what to do if there is none."""
    text = str(name_or_path)
    if isinstance(name_or_path, str) and text in CATALOG:
        folder = model_folder(text)
        if read_card(folder) is None:
            raise UserError(f"model {text!r} is not on this machine yet: run `rstar2 models get {text}`")
        return folder
    is_agent = isinstance(name_or_path, str) and text in AGENTS
    folder = AGENTS[text].folder if is_agent else Path(text).expanduser()
    if (folder / "config.json").is_file():
        return folder.absolute()
    if is_adapter(folder):
        base = base_name(folder)
        if Path(base).expanduser().absolute() == folder.absolute():
            raise UserError(f"{text} adapts itself: base_model_name_or_path must name the model that it adapts")
        return merged_folder(folder, resolve(base))
    if folder.is_dir():
        raise UserError(f"{text} is not a model folder: it has no config.json")
    raise UserError(f"{text!r} is neither a model folder nor a name in the catalog{suggestion(text)}")
