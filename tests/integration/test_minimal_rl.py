"""The example that a newcomer reads first: it runs, its gradient does what it says, and it needs no private name."""

import ast
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rstar2.agent import AgentLimits
from rstar2.algo import RocSettings
from rstar2.models import TinySizes, build_tiny
from rstar2.records import Outcome, StopReason, Trace, Turn

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

FILE = Path(__file__).parents[2] / "examples" / "minimal_rl.py"
SMALL = TinySizes(num_layers=1, hidden_size=32, num_heads=4, num_kv_heads=2, vocab_size=600, context_tokens=256)


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minimal_rl", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trace_of(model: Any, example: ModuleType, token_ids: tuple[int, ...]) -> Trace:
    with torch.no_grad():
        log_probs = example.log_probs(model, torch.tensor([[1, 2, *token_ids]]))[0, 1:].tolist()
    turn = Turn(token_ids, tuple(log_probs), "", StopReason.END_OF_TURN)
    return Trace("t", "p", (1, 2), "", (turn,), Outcome.ANSWERED)


def total_log_prob(model: Any, example: ModuleType, trace: Trace) -> float:
    with torch.no_grad():
        return float(example.log_probs(model, torch.tensor([trace.token_ids]))[0, 1:].sum())


def test_it_imports_only_names_that_the_parts_export() -> None:
    imports = [
        node
        for node in ast.walk(ast.parse(FILE.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rstar2")
    ]
    assert len(imports) > 5
    for node in imports:
        exported = importlib.import_module(node.module or "").__all__
        assert {alias.name for alias in node.names} <= set(exported), node.module


def test_it_fits_a_reader() -> None:
    assert len(FILE.read_text().splitlines()) <= 200


def test_it_runs_to_its_end(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = AgentLimits(max_turns=1, max_response_tokens=96, max_tool_output_tokens=64)
    small = {"SIZES": SMALL, "WARM_UP_STEPS": 3, "STEPS": 2, "ROC": RocSettings(group_size=2), "LIMITS": limits}
    for name, value in small.items():
        monkeypatch.setattr(example, name, value)
    example.main()
    assert capsys.readouterr().out.splitlines()[-1].startswith("step  2: reward 0.")


def test_the_gradient_makes_the_better_rollout_more_likely_and_the_worse_one_less(
    example: ModuleType, tmp_path: Path
) -> None:
    build_tiny(tmp_path, "qwen3", SMALL, ["some words"], seed=0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    better, worse = trace_of(model, example, (10, 11, 12)), trace_of(model, example, (20, 21))
    before = [total_log_prob(model, example, trace) for trace in (better, worse)]
    example.learn(model, torch.optim.AdamW(model.parameters(), 1e-3), [(better, 1.0), (worse, -1.0)])
    after = [total_log_prob(model, example, trace) for trace in (better, worse)]
    assert after[0] > before[0] and after[1] < before[1]
