"""The paired tests of benchmarks/roc_ablation.py, and what it calls a trivial call."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    for name in ("roc_figures", "roc_ablation"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_p_of_differences_that_all_have_one_sign_is_the_least_there_is() -> None:
    from roc_figures import sign_flip_p

    assert sign_flip_p([0.1, 0.3, 0.2, 0.05, 0.4]) == 2 / 32
    assert sign_flip_p([-0.1, -0.3, -0.2, -0.05, -0.4]) == 2 / 32
    assert sign_flip_p([0.1] * 10) == 2 / 1024


def test_p_counts_every_way_to_give_signs() -> None:
    from roc_figures import sign_flip_p

    # |±3 ± 1 ± 1| >= 3 where both ones agree with the three or cancel: 2 * 3 of 8.
    assert sign_flip_p([3, 1, -1]) == 6 / 8
    assert sign_flip_p([0, 0, 0]) == 1.0


def test_interval_is_students() -> None:
    from roc_figures import paired_difference

    found = paired_difference([1.0, 2.0, 3.0])
    assert found.num_pairs == 3
    assert found.mean == 2.0
    assert found.high - found.mean == pytest.approx(4.302653 / 3**0.5)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_holm_multiplies_by_the_tests_that_are_left_and_never_falls() -> None:
    from roc_figures import holm

    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def run_of(accuracies: list[float], step_s: float) -> Any:
    return {"final": {}, "steps": {"accuracy": accuracies, "step_s": [step_s] * len(accuracies)}}


def test_level_is_what_every_arm_of_the_seed_came_to() -> None:
    from roc_figures import seconds_to_levels

    runs = {"fast": run_of([0.3] * 3 + [0.9] * 3, 2.0), "slow": run_of([0.0, 0.0, 0.3, 0.3, 0.3, 0.3], 1.0)}
    assert seconds_to_levels(runs) == {"fast": 2.0, "slow": 5.0}


@pytest.mark.parametrize(
    ("program", "trivial"),
    [
        ("print(42)", True),
        ("print('The answer is', -42)", True),
        ("import math\nx = 7\nprint(x)", True),
        ("# nothing", True),
        ("7", True),
        ("print(6 * 7)", False),
        ("x = 6\nprint(x * 7)", False),
        ("print(len('abc'))", False),
        ("print(y)", False),
        ("for i in (1, 2): print(i)", False),
        ("print(42", False),
        ("print(\x00)", False),
    ],
)
def test_a_call_is_trivial_if_it_only_shows_constants(program: str, trivial: bool) -> None:
    from roc_ablation import is_trivial

    assert is_trivial(program) is trivial
