"""Resolves a model name, of a recipe or a command line, to a folder that can be loaded.

A name of the catalog, or of an agent that comes with this package, takes precedence; anything else is a path. `./name`
reaches a folder that happens to share such a name. A folder of low-rank adapters (what a LoRA run writes to
`final/adapter`, or any folder that peft wrote for linear layers) means its base with the adapters merged in. The merged
model is kept in `RSTAR2_HOME/cache/merged`, under the digest of its sources, so other adapters or another base get
another folder.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2.errors import UserError
from rstar2.models.agents import AGENTS
from rstar2.models.card import CARD_NAME, read_card
from rstar2.models.catalog import CATALOG, suggestion
from rstar2.models.home import kept_in_home, model_folder
from rstar2.models.storage import exclusive, put_in_place, require_installed, staged, storage_errors

if TYPE_CHECKING:
    from torch import Tensor

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """The low-rank matrices that an adapter adds to the weight of one linear layer."""

    up: "Tensor"
    down: "Tensor"
    scaling: float

    def added_to(self, weight: "Tensor") -> "Tensor":
        """The adapted weight, computed in float32 and rounded to the weight's dtype."""
        up, down = (each.to(weight.device) for each in (self.up, self.down))
        return (weight.float() + up @ down * self.scaling).to(weight.dtype)


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file()


def base_name(adapter: Path) -> str:
    """The name of the adapters' base model, as `resolve` takes it."""
    name = _config(adapter).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise UserError(f"{adapter / CONFIG_FILE}: base_model_name_or_path must name the model that it adapts")
    return name


def merged_folder(adapter: Path, base: Path) -> Path:
    """The folder of `base` with the adapters merged in; it is made if it does not exist yet."""
    require_installed(("torch", "safetensors"), f"the adapters in {adapter}")
    _require_weights(adapter)
    folder = kept_in_home("cache") / "merged" / _digest(adapter, base)
    if folder.is_dir():
        return folder
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(folder), staged(folder) as scratch:
            finished = scratch / "model"
            _merge(adapter, base, finished)
            put_in_place(finished, folder, scratch)
    return folder


def read_adapter(adapter: Path) -> dict[str, AdaptedLayer]:
    """The adapted layers by the names of their weights. UserError if this is no folder of plain LoRA adapters."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not is_adapter(adapter):
        raise UserError(f"{adapter} has no {CONFIG_FILE}: give the folder of an adapter that peft wrote")
    _require_weights(adapter)
    scaling = _scaling(adapter)
    try:
        stored = load_file(adapter / WEIGHTS_FILE)
    except SafetensorError as error:
        raise UserError(f"{adapter / WEIGHTS_FILE} is damaged ({error}): get the adapters again") from error
    tensors = {name.removeprefix(_PREFIX): tensor.float() for name, tensor in stored.items()}
    layers = {name.rpartition(".lora_")[0] for name in tensors}
    if {f"{layer}.lora_{side}.weight" for layer in layers for side in "AB"} != tensors.keys():
        raise UserError(f"{adapter}: only plain LoRA adapters of linear layers can be merged here")
    return {
        f"{layer}.weight": AdaptedLayer(tensors[f"{layer}.lora_B.weight"], tensors[f"{layer}.lora_A.weight"], scaling)
        for layer in layers
    }


def _require_weights(adapter: Path) -> None:
    if not (adapter / WEIGHTS_FILE).is_file():
        raise UserError(f"{adapter} has no {WEIGHTS_FILE}: it is no complete folder of adapters")


def _config(adapter: Path) -> dict[str, Any]:
    try:
        config = json.loads((adapter / CONFIG_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{adapter / CONFIG_FILE} is damaged: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{adapter / CONFIG_FILE} is damaged: it holds no object")
    return config


def _scaling(adapter: Path) -> float:
    """The factor of the product of the two matrices."""
    config = _config(adapter)
    special = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out")
    if config.get("peft_type") != "LORA" or any(config.get(field) for field in special):
        raise UserError(f"{adapter}: only plain LoRA adapters of linear layers can be merged here")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, (int, float)):
        raise UserError(f"{adapter / CONFIG_FILE} is damaged: r must be a number of at least 1, lora_alpha a number")
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))


def _digest(adapter: Path, base: Path) -> str:
    digest = hashlib.sha256(str(base.absolute()).encode())
    for file in sorted(base.glob("*.safetensors")):
        digest.update(f"{file.name}\0{file.stat().st_size}\0{file.stat().st_mtime_ns}\0".encode())
    for file in sorted(file for file in adapter.iterdir() if file.is_file()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:32]


def _merge(adapter: Path, base: Path, target: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    layers = read_adapter(adapter)
    unused = set(layers)
    target.mkdir()
    for file in base.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and file.name != CARD_NAME:
            shutil.copy(file, target / file.name)
    for file in sorted(base.glob("*.safetensors")):
        state = {}
        with safe_open(file, "pt") as stored:
            metadata = stored.metadata()
            for name in stored.keys():  # noqa: SIM118  # it is no dict
                tensor = stored.get_tensor(name)
                if name in unused:
                    unused.remove(name)
                    tensor = layers[name].added_to(tensor)
                state[name] = tensor
        save_file(state, target / file.name, metadata)
    if unused:
        raise UserError(
            f"{adapter} adapts {min(unused)}, which the model in {base} does not have: it is of another model"
        )
    for file in adapter.iterdir():
        if file.is_file() and file.name not in (CONFIG_FILE, WEIGHTS_FILE):
            shutil.copy(file, target / file.name)


def resolve(name_or_path: str | Path) -> Path:
    """The folder of the named model. If there is none, a UserError says what to do."""
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
