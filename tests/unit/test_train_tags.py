"""Adapters are not spent on a model whose head cannot tell the tags of a call from tokens that mean nothing."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from rstar2.agent import ChatFormat, load_chat
from rstar2.agent.hf_tokenizer import ToolTags
from rstar2.config import Recipe
from rstar2.engine.vllm.checkpoint import EMBEDDING
from rstar2.errors import UserError
from rstar2.train import prepare_new, train
from rstar2.train.curriculum.tags import MAX_SAME_ROWS, num_same_rows, require_learnable_tags
from rstar2.train.reporting.observer import Observers
from rstar2.train.workbench import Workbench

pytestmark = pytest.mark.unit


def test_rows_count_as_the_same_within_a_hundredth_of_their_length() -> None:
    head = torch.randn(10_000, 8, generator=torch.Generator().manual_seed(0))
    head[3] = torch.full((8,), 0.5)
    head[7000:7005] = head[3] * 1.009
    head[9000:9003] = head[3] * 1.011
    assert num_same_rows(head, 3) == 5
    assert num_same_rows(head, 4) == 0
    head[20:24] = 0.0
    assert num_same_rows(head, 20) == 3, "rows of zeros were never trained either"


@pytest.fixture(scope="module")
def untrained(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a closing tag that was never trained, nor were a hundred others and one."""
    copy = shutil.copytree(tiny_policy, tmp_path_factory.mktemp("untrained"), dirs_exist_ok=True)
    weights = load_file(copy / "model.safetensors")
    (tag_id,) = load_chat(copy).tokenizer.encode("</tool_call>")
    weights[EMBEDDING][: MAX_SAME_ROWS + 1] = weights[EMBEDDING][tag_id]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


def check(folder: Path, lora: dict[str, Any] | None, tool_tags: ToolTags = "token") -> None:
    model = {"name": "mine", "context_tokens": 256} | ({} if lora is None else {"lora": lora})
    recipe = Recipe.model_validate({"name": "unit", "model": model})
    require_learnable_tags(recipe, folder, load_chat(folder, tool_tags=tool_tags))


def test_adapters_need_tags_that_were_trained(tiny_policy: Path, untrained: Path) -> None:
    check(tiny_policy, {})
    with pytest.raises(UserError, match=r'mine has a token for </tool_call>.*same as 101 others.*tool_tags = "text"'):
        check(untrained, {})
    check(untrained, {}, "text")
    check(untrained, {"target_modules": ["lm_head"]})
    check(untrained, None)


@pytest.mark.parametrize("tool_tags", get_args(ToolTags))
async def test_a_run_is_refused_before_anything_is_opened(untrained: Path, tmp_path: Path, tool_tags: ToolTags) -> None:
    recipe = Recipe.model_validate(
        {
            "name": "unit",
            "model": {"name": str(untrained), "context_tokens": 256, "lora": {}},
            "agent": {"tool_tags": tool_tags},
            "sft": {"data": ["format"], "max_tokens": 256},
            "data": {"format": {"source": "procedural:tool_format", "num_problems": 2}},
        }
    )
    opened: list[ChatFormat] = []

    @asynccontextmanager
    async def open_workbench(_: Recipe, __: Path, chat: ChatFormat) -> AsyncIterator[Workbench]:
        opened.append(chat)
        raise UserError("there is no workbench")
        yield

    with pytest.raises(UserError, match="never trained" if tool_tags == "token" else "no workbench"):
        await train(prepare_new(recipe, tmp_path / "run"), Observers(), open_workbench=open_workbench)
    assert [len(chat.tokenizer.encode("<tool_call>")) > 1 for chat in opened] == [True] * (tool_tags == "text")
