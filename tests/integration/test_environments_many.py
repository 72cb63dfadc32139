"""Rollouts of a user's class, by a scripted model: many at a time, and with every failure that a class may have."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from train_rollouts import CHAT, LIMITS

from docs_pages import PAGES, blocks
from rstar2.agent import AgentLimits
from rstar2.config import EnvironmentSection
from rstar2.engine import Sampling
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.environments import Services, Task, tool_call
from rstar2.environments.of_object import source_of_object
from rstar2.environments.user_code import load_object
from rstar2.errors import UserError
from rstar2.records import Outcome, Problem, ToolStatus, Trace, Verdict
from rstar2.rollout import make_policy
from rstar2.rollout.driver import Driver
from rstar2.rollout.request import RolloutRequest
from rstar2.rollout.roller import Roller
from rstar2.rollout.scheduler import EngineSpeed

pytestmark = pytest.mark.integration

NUM_EPISODES = 1000


async def rolled(
    cls: type, rows: list[dict[str, Any]], limits: AgentLimits = LIMITS, **fields: Any
) -> dict[str, Trace]:
    """Each row says in `turns` what the model writes."""

    def policy(prompt: ScriptedPrompt) -> str:
        turns: list[str] = rows[int(prompt.session)]["turns"]
        return turns[prompt.turn]

    section = EnvironmentSection(source="file:own.py:Own", **fields)
    driver: Driver[Trace] = Driver(make_policy("kv-aware"))
    engine = ScriptedEngine(policy, CHAT.tokenizer, CHAT.end_of_turn_id)
    driver.add_engine("scripted", engine, EngineSpeed(1e-6, 1e-4, 1e-9), num_cache_tokens=1 << 24)
    services = Services(cast("Any", None), cast("Any", None))
    async with source_of_object(cls, section).open(section, services) as environment:
        roller = Roller(driver, CHAT, {"": environment}, "scripted")
        requests = [
            RolloutRequest(Problem(row["id"], "", "", row=row), str(index), "g", 0, 0, "s", seed=0)
            for index, row in enumerate(rows)
        ]
        return {trace.problem_id: trace for trace in await roller.run(requests, limits, Sampling())}


class Slow(Task):
    num_open = 0
    lock = threading.Lock()

    def reset(self, secret: str, **_row: Any) -> None:
        self.secret = secret
        with self.lock:
            type(self).num_open += 1

    def guess(self, word: str) -> str:
        """Guesses the word."""
        time.sleep(2.0)
        self.guessed = word
        return "right" if word == self.secret else "wrong"

    def get_reward(self) -> bool:
        return self.guessed == self.secret

    def close(self) -> None:
        with self.lock:
            type(self).num_open -= 1


async def test_a_thousand_episodes_of_a_slow_class_at_a_time() -> None:
    rows = [
        {"id": str(n), "prompt": "Guess.", "secret": f"s{n}", "turns": [tool_call("guess", word=f"s{n}"), "Done."]}
        for n in range(NUM_EPISODES)
    ]
    Slow.num_open = 0
    traces = await rolled(Slow, rows)
    assert len(traces) == NUM_EPISODES
    assert {(trace.outcome, trace.verdict, trace.reward) for trace in traces.values()} == {
        (Outcome.ANSWERED, Verdict.RIGHT, 1.0)
    }
    assert {trace.results[0].text for trace in traces.values()} == {"right"}
    assert Slow.num_open == -1, "every episode was closed, and the object that writes prompts, which was never reset"


class Fails(Task):
    go_on = threading.Event()

    def reset(self, kind: str, **_row: Any) -> str:
        self.kind = kind
        if kind == "reset":
            raise KeyError("no such level")
        return ""

    def act(self) -> str:
        """Acts."""
        if self.kind == "tool hangs":
            self.go_on.wait()
        if self.kind == "tool raises":
            raise RuntimeError("the game is broken")
        if self.kind == "tool refuses":
            raise ValueError("You cannot do that.")
        return "x" * 100_000_000 if self.kind == "tool writes" else "done"

    def reply(self, said: str) -> Any:
        return len(said) if self.kind == "reply" else None

    def get_reward(self) -> Any:
        if self.kind == "reward hangs":
            self.go_on.wait()
        return float("nan") if self.kind == "nonsense" else 0.5

    def close(self) -> None:
        if getattr(self, "kind", "") == "close raises":
            raise OSError("it is gone")


FAILURES = {
    "reset": "its episode could not begin: Fails.reset: {}: KeyError: 'no such level'",
    "tool hangs": "tool act: {}: no answer within 1 s",
    "tool raises": "tool act: {}: RuntimeError: the game is broken",
    "reply": "Fails.reply: {}: returned a int, not a text or None",
}
UNDECIDED = {
    "reward hangs": "Fails.get_reward: {}: no answer within 1 s",
    "nonsense": "Fails.get_reward: {}: returned nan as its reward; a reward must be a finite number",
}


async def test_every_failure_is_typed_and_disturbs_no_other_episode() -> None:
    kinds = [*FAILURES, *UNDECIDED, "tool refuses", "tool writes", "close raises", "none"]
    rows = [{"id": kind, "kind": kind, "prompt": "Act.", "turns": [tool_call("act"), "Done."]} for kind in kinds]
    Fails.go_on.clear()
    try:
        traces = await rolled(Fails, rows, deadline_s=1.0)
    finally:
        Fails.go_on.set()
    for kind, message in (FAILURES | UNDECIDED).items():
        trace = traces[kind]
        head, tail = message.split("{}")
        assert trace.reward is None, kind
        assert head in trace.note and tail in trace.note and "test_environments_many.py, line " in trace.note, (
            trace.note
        )
        assert trace.outcome is (Outcome.INFRASTRUCTURE_FAULT if kind in FAILURES else Outcome.ANSWERED)
        assert trace.verdict is (None if kind in FAILURES else Verdict.UNDECIDED)
    for kind in ("tool refuses", "tool writes", "close raises", "none"):
        assert (traces[kind].outcome, traces[kind].reward) == (Outcome.ANSWERED, 0.5)
    assert "its episode could not be closed: Fails.close: " in traces["close raises"].note
    assert traces["none"].note == ""
    refused, written = traces["tool refuses"].results[0], traces["tool writes"].results[0]
    assert (refused.status, refused.text) == (ToolStatus.RAISED, "You cannot do that.")
    assert written.status is ToolStatus.OUTPUT_TOO_LONG
    assert written.num_cut_chars + len(written.text) > 99_999_000
    assert len(written.text) < 1000


async def test_the_recipe_may_stop_the_run() -> None:
    rows = [{"id": "0", "kind": "tool raises", "prompt": "Act.", "turns": [tool_call("act")]}]
    with pytest.raises(UserError, match=r"test_environments_many.py, line \d+: RuntimeError: the game is broken"):
        await rolled(Fails, rows, on_error="stop")


class Rooms(Task):
    """The world answers, and a call ends the episode."""

    def reset(self, **_row: Any) -> str:
        self.heard: list[str] = []
        return " It is dark."

    def leave(self) -> str:
        """Leaves the room."""
        self.is_over = True
        return "You are out."

    async def reply(self, said: str) -> str:
        self.heard.append(said)
        return f"Echo: {said}"

    def get_reward(self, trace: Trace) -> dict[str, float]:
        assert trace.turn_texts[:2] == ("Hello?", "Light!"), "without the token that ends a turn"
        return {"words": len(self.heard) / 4, "left": 0.5 * (trace.outcome is Outcome.ANSWERED)}


async def test_a_conversation_with_the_world_that_a_call_ends() -> None:
    row = {"id": "0", "prompt": "You wake up.", "turns": ["Hello?", "Light!", tool_call("leave"), "never asked"]}
    trace = (await rolled(Rooms, [row], replace(LIMITS, max_turns=5)))["0"]
    assert "You wake up. It is dark." in trace.prompt_text
    assert ["Echo: Hello?" in turn.appended_text for turn in trace.turns] == [True, False, False]
    assert "Echo: Light!" in trace.turns[1].appended_text
    assert (trace.outcome, trace.reward) == (Outcome.ANSWERED, 1.0)
    assert {key: value for key, value in trace.metadata.items() if "/" in key} == {
        "score/words": "0.5",
        "score/left": "0.5",
    }


async def test_the_task_of_the_page_about_own_tasks(tmp_path: Path) -> None:
    page = next(page for page in PAGES if page.name == "environments-own.md")
    text = blocks(page, "python")[0].text
    assert len(text.splitlines()) <= 30
    (tmp_path / "pens.py").write_text(text)
    pens = load_object(f"file:{tmp_path}/pens.py:Pens", "test")
    rows = [{**row, "turns": [pens().solution(row)]} for row in pens.rows(20)]
    rows[0]["turns"] = [tool_call("order", colour="pink"), "I give up."]
    rows[1]["turns"] = ["I do not know."]
    traces = list((await rolled(pens, rows, replace(LIMITS, max_turns=5))).values())
    assert [trace.reward for trace in traces] == [0.0, 0.0] + [1.0] * 18
    assert traces[0].results[0].text == "There are no pink pens."
