"""One table for each kind of extension: every entry loads, and a new one is one file and one line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from rstar2 import extensions
from rstar2.algo import RocSettings, choose_rollouts, policy_loss
from rstar2.config import AlgoSection
from rstar2.config.explain import explain
from rstar2.config.generation import RolloutSection
from rstar2.errors import UserError
from rstar2.extensions import ADVANTAGES, LOSS_TERMS, POLICIES, SELECTIONS, Table
from rstar2.rollout import make_policy

pytestmark = pytest.mark.unit

TABLES = {name: table for name, table in vars(extensions).items() if isinstance(table, Table)}


@pytest.mark.parametrize("name", TABLES)
def test_every_entry_loads_and_says_what_it_does(name: str) -> None:
    table = TABLES[name]
    assert len(table) > 1
    for entry in table:
        loaded = table.load(entry)
        inner = {
            "SELECTIONS": "choose",
            "BENCHMARKS": "read",
            "FORK_POINTS": "copies",
            "ENVIRONMENTS": "open",
            "SFT_SOURCES": "convert",
            "RL_SOURCES": "convert",
        }.get(name)
        code = loaded if inner is None else getattr(loaded, inner)
        assert callable(code)
        assert table[entry].summary and not table[entry].summary.endswith(".")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of a user's, with one extension of each kind that a recipe can name."""
    (tmp_path / "own_extensions.py").write_text(
        "import numpy as np\n"
        "from rstar2.algo import SelectionRule\n"
        "from rstar2.rollout.policies import RoundRobin\n"
        "first = SelectionRule(lambda candidates, rng: np.arange(candidates.num_kept))\n"
        "def signs(rewards): return np.sign(rewards - rewards.mean())\n"
        "class Mine(RoundRobin): pass\n"
        "def doubled(losses, tokens, settings, seen):\n"
        "    seen['doubled'] = losses\n"
        "    return 2 * losses\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_extensions"
    sys.modules.pop("own_extensions", None)


def test_a_recipe_may_name_code_of_the_users_own(own: str) -> None:
    algo = AlgoSection(selection=f"{own}:first", advantage=f"{own}:signs")
    settings = RocSettings(group_size=2, selection=algo.selection, advantage=algo.advantage)
    choice = choose_rollouts([1, 0, 0, 1], [0, 0, 0, 0], settings, np.random.default_rng(0))
    assert choice.kept.tolist() == [True, True, False, False]
    assert choice.advantages[:2].tolist() == [1, -1]
    name = RolloutSection(scheduler=f"{own}:Mine").scheduler
    assert type(make_policy(name)).__name__ == "Mine"


def test_a_new_line_in_a_table_is_enough(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the line adds is a choice of recipes, and applied."""
    for table, name, target in (
        (SELECTIONS, "first", "first"),
        (ADVANTAGES, "signs", "signs"),
        (POLICIES, "mine", "Mine"),
        (LOSS_TERMS, "doubled", "doubled"),
    ):
        entry = extensions.Extension(f"{own}:{target}", "an entry of the test's")
        monkeypatch.setitem(table._entries, name, entry)
    assert AlgoSection(selection="first", advantage="signs").selection == "first"
    assert type(make_policy("mine")).__name__ == "Mine"
    (section,) = explain("algo.selection")
    assert '"first"' in section.fields[0].type
    log_probs, advantages = torch.zeros(2), torch.tensor([1.0, -2.0])
    loss = policy_loss(log_probs, log_probs, advantages, None, num_tokens=2)
    assert loss.loss == pytest.approx(2 * 0.5) and loss.metrics["doubled"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("papers", r"must be the name of a selection \(paper, .*\) or package.module:name; did you mean 'paper'\?"),
        ("nowhere.at_all:x", "selection 'nowhere.at_all:x' cannot be loaded: No module named 'nowhere'.*PYTHONPATH"),
        ("rstar2.algo:nothing", "cannot be loaded: .*nothing"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_users_mistake(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SELECTIONS.load(name)
