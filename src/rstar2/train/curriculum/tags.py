"""Checks from a model's weights, before anything is spent, whether it can learn to write the tags of a tool call.

A token that was never trained has the same row of the output head as thousands of others, so all of them always get the
same logit. Adapters of the layers change what goes into the head, and never the head.
"""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from rstar2.agent import ChatFormat
from rstar2.agent.parse import CLOSE, OPEN
from rstar2.config import Recipe
from rstar2.engine.vllm.checkpoint import EMBEDDING, HEAD
from rstar2.errors import UserError

MAX_SAME_ROWS = 100
"""Trained rows are all different; the rows that were never trained are counted in hundreds at least."""
SAME_WITHIN = 0.01
"""The largest difference, relative to a row's length, that weight decay and rounding leave between untrained rows."""
ROWS_AT_ONCE = 8192
HEAD_MODULE = HEAD.removesuffix(".weight")


def require_learnable_tags(recipe: Recipe, folder: Path, chat: ChatFormat) -> None:
    """Raises UserError if adapters would have to learn call tags whose tokens were never trained. Full fine-tuning
    changes the head, and so do adapters of the head."""
    lora = recipe.model.lora
    tags = {tag: ids[0] for tag in (OPEN, CLOSE) if len(ids := chat.tokenizer.encode(tag)) == 1}
    if lora is None or HEAD_MODULE in lora.target_modules or not tags:
        return
    head = _read_head(folder)
    if head is None:
        return
    for tag, token_id in tags.items():
        num_same = num_same_rows(head, token_id)
        if num_same > MAX_SAME_ROWS:
            raise UserError(
                f"{recipe.model.name} has a token for {tag} that was never trained: its row of the output head is the "
                f"same as {num_same} others, and adapters do not change the head, so the model can never learn to "
                'write a call. Set agent.tool_tags = "text", which spells it in ordinary tokens'
            )


def num_same_rows(head: Tensor, token_id: int) -> int:
    """How many other rows of the output head [token, hidden] are the same as this token's."""
    row = head[token_id].float()
    limit = SAME_WITHIN * row.norm()
    num_same = torch.tensor(0)
    for start in range(0, len(head), ROWS_AT_ONCE):
        distances = (head[start : start + ROWS_AT_ONCE].float() - row).norm(dim=1)
        num_same += (distances <= limit).sum()
    return int(num_same) - 1


def _read_head(folder: Path) -> Tensor | None:
    """The output head in the model's files, or the embedding if the head is tied to it; None if they hold neither."""
    files: dict[str, Path] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            files |= dict.fromkeys(weights.keys(), file)
    name = HEAD if HEAD in files else EMBEDDING
    if name not in files:
        return None
    with safe_open(files[name], framework="pt") as weights:
        head: Tensor = weights.get_tensor(name)
    return head
