"""The TRL and verl listings of docs/own-trainer.md run, against the parts of those libraries that they call."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from docs_pages import ROOT, blocks
from rstar2.algo import group_advantages

pytestmark = pytest.mark.unit

PAGE = ROOT / "docs" / "own-trainer.md"


def listing_with(phrase: str) -> str:
    (found,) = [block.text for block in blocks(PAGE, "python") if phrase in block.text]
    return found


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    def install(name: str, **members: object) -> ModuleType:
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return install


def test_the_verl_listing(stand_in: Callable[..., ModuleType]) -> None:
    registered: dict[str, Callable[..., Any]] = {}

    def register_adv_est(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda function: registered.setdefault(name, function)

    for package in ("verl", "verl.trainer", "verl.trainer.ppo"):
        stand_in(package)
    stand_in("verl.trainer.ppo.core_algos", register_adv_est=register_adv_est)
    scope: dict[str, Any] = {}
    exec(listing_with("register_adv_est"), scope)
    score = scope["compute_score"]

    text = r"<reason>…<tool_response><answer>\boxed{8}</answer></tool_response><answer>\boxed{7}</answer>"
    info = {"tool_rewards": [1.0, 0.0, 1.0, 1.0], "num_turns": 6}
    assert score("", text, "7", info) == 1 - 0.25 / 4
    assert score("", text, "8", info) == 0.0
    assert score("", r"<answer>\boxed{7}</answer>", "7", {"tool_rewards": [], "num_turns": 2}) == 1 - 0.5 / 4
    assert score("", r"<answer>\boxed{x+1}</answer>", "1+x", info) == -1.0

    # Two groups of 32, the second all wrong, scores on the last token.
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 9, (64,), generator=generator)
    mask = (torch.arange(8) < lengths[:, None]).float()
    outcomes = torch.cat([torch.tensor([1.0, 0.9, 0.0, -1.0]).repeat(8), torch.zeros(32)])
    rewards = torch.zeros(64, 8)
    rewards[torch.arange(64), lengths - 1] = outcomes
    index = np.array(["a"] * 32 + ["b"] * 32, dtype=object)
    advantages, returns = registered["grpo_roc"](
        token_level_rewards=rewards, response_mask=mask, index=index, config=None
    )
    assert returns is advantages
    trained = advantages.abs().sum(-1) > 0
    assert trained.sum() == 16
    assert not trained[32:].any()
    assert not trained[:32][outcomes[:32] == -1].any()
    assert (advantages * (1 - mask) == 0).all()
    # Of 16 right and 8 wrong, 11 and 5 are kept; verl's mean over all tokens is then the mean over kept tokens.
    unscaled = torch.tensor(group_advantages([1.0] * 11 + [0.0] * 5), dtype=torch.float32)[[0, -1]]
    expected = torch.where(outcomes > 0, unscaled[0], unscaled[1])[trained, None]
    per_token = torch.rand(64, 8, generator=generator)
    theirs = (per_token * advantages * mask).sum() / mask.sum()
    ours = (per_token[trained] * expected * mask[trained]).sum() / mask[trained].sum()
    torch.testing.assert_close(theirs, ours)


class StandInTrainer:
    """What `GRPOTrainer` gives to the methods that the listing overrides."""

    num_generations = 8

    def __init__(self, scores: torch.Tensor) -> None:
        self.model = SimpleNamespace(training=True)
        self.args = SimpleNamespace(seed=0)
        self.state = SimpleNamespace(global_step=3)
        self.accelerator = SimpleNamespace(process_index=1, gather=lambda tensor: tensor[None])
        self.given = scores

    def _calculate_rewards(self, *_: object) -> torch.Tensor:
        return self.given

    def _generate_and_score_completions(self, inputs: list[object]) -> dict[str, torch.Tensor]:
        self._calculate_rewards(inputs)
        rows = len(inputs)
        completion_mask = torch.ones(rows, 5, dtype=torch.long)
        tool_mask = completion_mask.clone()
        tool_mask[:, 2] = 0
        return {
            "advantages": torch.zeros(rows),
            "completion_mask": completion_mask,
            "tool_mask": tool_mask,
            "num_items_in_batch": tool_mask.sum(),
        }


def test_the_trl_listing(stand_in: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in("trl", GRPOTrainer=StandInTrainer)
    monkeypatch.setattr("rstar2.sandbox.Sandbox", lambda: None)
    scope: dict[str, Any] = {}
    exec(listing_with("class RocTrainer"), scope)

    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}] * 2}
    answer = {"role": "assistant", "content": "<answer>1</answer>"}
    completions = [[call, {"role": "tool", "content": "<answer>2</answer>"}, answer], [answer]]
    environments = [SimpleNamespace(num_succeeded=1), SimpleNamespace(num_succeeded=0)]
    assert scope["penalty"](completions=completions, environments=environments, prompts=[]) == [0.5, 0.5]

    # Two groups of 8 on two processes: this one, the second, holds the second group.
    equal, mixed = [[1.0, 0.0]] * 8, [[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 4 + [[float("nan"), 0.0]]
    trainer = scope["RocTrainer"](torch.tensor(equal + mixed))
    output = trainer._generate_and_score_completions([{}] * 8)
    trained = output["tool_mask"].sum(-1) > 0
    assert trained.sum() == 4
    assert trained[:3].sum() == 2
    assert not trained[7]
    assert (output["tool_mask"][:, 2] == 0).all()
    assert output["num_items_in_batch"] == 16
    assert output["advantages"][trained].abs().tolist() == pytest.approx([0.75**0.5] * 4)
    assert (output["advantages"][~trained] == 0).all()

    trainer.model.training = False
    assert trainer._generate_and_score_completions([{}] * 8)["num_items_in_batch"] == 32
