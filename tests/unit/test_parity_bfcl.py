"""BFCL's single-turn categories against bfcl-eval: every response has the verdict of its decoder and checker."""

import pytest

from golden_file import read_golden
from rstar2.data import FunctionCallTask
from rstar2.evals.bfcl.judge import calls_in
from rstar2.evals.bfcl.match import matches

pytestmark = pytest.mark.unit


def test_every_response_has_the_official_verdict() -> None:
    """Malformed calls are read by the agent's rules. These differ from the package's only where a malformed call stands
    beside one that can be read: ours takes that one, the package's decoder for Qwen takes none."""
    golden = read_golden("bfcl")
    tasks = [
        FunctionCallTask(category, (), tuple(functions), tuple(truth)) for category, functions, truth in golden["tasks"]
    ]
    assert len(golden["responses"]) >= 500
    different = []
    for index, is_right, is_damaged, text in golden["responses"]:
        calls = calls_in(text)
        is_left_to_us = is_damaged and calls
        if not is_left_to_us and matches(tasks[index], calls) is not bool(is_right):
            different.append((tasks[index].category, text, bool(is_right), tasks[index].ground_truth))
    assert different == []
    assert sum(is_damaged for _, _, is_damaged, _ in golden["responses"]) < 200
