"""Rollouts that are trees, of a scripted model with a real notebook: what is shared, what is not, and what is left."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest
import pytest_asyncio
from rollout_leftovers import left_in_driver
from sandbox_service import cold
from train_rollouts import CHAT, answer

from rstar2.agent import AgentLimits, JupyterTool, Tool, Transcript
from rstar2.agent.chat_template import ASSISTANT_OPENING
from rstar2.engine import Chunk, Sampling
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.environments.plain_episode import PlainEnvironment
from rstar2.extensions import FORK_POINTS
from rstar2.grading import Grader
from rstar2.records import Outcome, Problem, Trace
from rstar2.records.branches import iterate_traces, stored
from rstar2.records.record_file import RecordWriter
from rstar2.rollout import make_policy
from rstar2.rollout.driver import Driver
from rstar2.rollout.judge import answer_judge
from rstar2.rollout.request import RolloutRequest
from rstar2.rollout.resume import ResumingRoller
from rstar2.rollout.roller import Roller
from rstar2.rollout.scheduler import EngineSpeed
from rstar2.rollout.trees import ForkFacts, Leaf, TreeSettings, policies
from rstar2.rollout.trees.grow import ForkPoint, LeafRequest, grow
from rstar2.sandbox import LocalExecutor

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LIMITS = AgentLimits(max_turns=4, max_response_tokens=1000, max_tool_output_tokens=64)
PROBLEM = Problem("p", "compute", "42")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor() -> AsyncIterator[LocalExecutor]:
    async with cold(num_young=2) as executor:
        yield executor


def cell(code: str) -> str:
    content = json.dumps({"name": JupyterTool.schema.name, "arguments": {"code": code}})
    return f" run</reason>\n<tool_call>\n{content}\n</tool_call>"


def says(prompt: ScriptedPrompt) -> str:
    """Sets a variable, appends the rollout's own number to it, answers what it reads there."""
    match prompt.text.count("<tool_response>"):
        case 0:
            return cell("x = [6]\nprint(x)")
        case 1:
            return cell(f"x.append({int(prompt.session[1:])})\nprint(x)")
        case _:
            return answer(prompt.text.rpartition("<tool_response>")[2].partition("]")[0].strip("\n[").replace(", ", ""))


class Unforkable(JupyterTool):
    fork = None  # type: ignore[assignment]


class Unwilling(JupyterTool):
    async def fork(self) -> Self:
        raise ZeroDivisionError


def make_roller(
    make_tools: Callable[[], Sequence[Tool]],
    executor: LocalExecutor,
    reply: Callable[[ScriptedPrompt], str] = says,
    kind: type[ScriptedEngine] = ScriptedEngine,
) -> Roller:
    driver: Driver[Trace] = Driver(make_policy("kv-aware"))
    engine = kind(reply, CHAT.tokenizer, CHAT.end_of_turn_id)
    driver.add_engine("scripted", engine, EngineSpeed(1e-6, 1e-4, 1e-9), num_cache_tokens=1 << 20)
    environment = PlainEnvironment(answer_judge(Grader(executor)).decide, make_tools)
    return Roller(driver, CHAT, {"": environment}, "scripted")


def requests(num: int, tree: TreeSettings | None) -> list[RolloutRequest]:
    return [RolloutRequest(PROBLEM, f"t{n}", "g", n, 1, "first", seed=n, tree=tree) for n in range(num)]


async def test_branches_share_turns_and_have_notebooks_of_their_own(executor: LocalExecutor, tmp_path: Path) -> None:
    roller = make_roller(lambda: (JupyterTool(executor),), executor)
    seen: list[Trace] = []
    traces = await roller.run(requests(8, TreeSettings(2, num_rounds=2)), LIMITS, Sampling(), seen.append)
    assert [trace.id for trace in traces] == [f"t{n}" for n in range(8)]
    assert [trace.parent for trace in traces[:2]] == ["", ""] and all(trace.parent for trace in traces[2:])
    by_id = {trace.id: trace for trace in traces}
    for number, trace in enumerate(traces):
        assert len(trace.turns) == 3
        values = trace.results[1].text
        if trace.num_shared_turns < 2:
            assert values == f"[6, {number}]", "no other branch has written into its notebook"
        if trace.parent:
            parent = by_id[trace.parent]
            assert trace.turns[: trace.num_shared_turns] == parent.turns[: trace.num_shared_turns]
            assert trace.prompt_ids == parent.prompt_ids
            assert seen.index(parent) < seen.index(trace)
    assert left_in_driver(roller.driver) == []
    num_appended = sum(len(turn.appended_ids) for trace in traces for turn in trace.own_turns)
    (use,) = roller.driver.recorder.record().engines
    assert use.num_new_tokens == len(traces[0].prompt_ids) + num_appended, "what is shared is new once"

    path = tmp_path / "traces.jsonl"
    with RecordWriter[Trace](path) as writer:
        for trace in seen:
            writer.append(stored(trace))
    assert [trace for trace, _ in iterate_traces(path)] == seen
    num_stored = sum(len(turn.token_ids) for trace in seen for turn in stored(trace).turns)
    assert num_stored < sum(trace.num_sampled_tokens for trace in seen)
    halfway = [end for _, end in iterate_traces(path)][3]
    assert [trace for trace, _ in iterate_traces(path, halfway)] == seen[4:], "parents before the offset are found"


@pytest.mark.parametrize("points", ["errors", "results"])
async def test_where_nothing_can_be_forked_leaves_begin_at_the_prompt(executor: LocalExecutor, points: str) -> None:
    tool = JupyterTool if points == "errors" else Unforkable
    roller = make_roller(lambda: (tool(executor),), executor)
    traces = await roller.run(requests(4, TreeSettings(1, points=points)), LIMITS, Sampling())
    assert all(not trace.parent and len(trace.turns) == 3 for trace in traces)


async def test_a_tool_whose_fork_raises_is_not_forked(executor: LocalExecutor) -> None:
    roller = make_roller(lambda: (Unwilling(executor),), executor)
    with pytest.warns(RuntimeWarning, match=r"cannot be forked: .*test_rollout_trees.py, line \d+: ZeroDivisionError"):
        traces = await roller.run(requests(4, TreeSettings(1)), LIMITS, Sampling())
    assert all(not trace.parent and len(trace.turns) == 3 for trace in traces)
    assert left_in_driver(roller.driver) == []


async def test_forks_at_errors_come_after_calls_that_failed(executor: LocalExecutor) -> None:
    def reply(prompt: ScriptedPrompt) -> str:
        match prompt.text.count("<tool_response>"):
            case 0:
                return cell("x = 1")
            case 1:
                return cell("nosuch")
            case _:
                return answer("42")

    roller = make_roller(lambda: (JupyterTool(executor),), executor, reply)
    traces = await roller.run(requests(4, TreeSettings(1, points="errors")), LIMITS, Sampling())
    assert [(trace.parent, trace.num_shared_turns) for trace in traces] == [("", 0), *[("t0", 2)] * 3]


def asks(token_id: int) -> bool:
    return "?" in CHAT.tokenizer.decode([token_id])


class Unsure(ScriptedEngine):
    """Most unsure where it asks. The log-probability of each token is minus the number of its rollout."""

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        async for chunk in super().generate(session, token_ids, sampling, max_tokens):
            entropies = tuple(2.0 if asks(token) else 1.0 for token in chunk.token_ids)
            yield replace(chunk, log_probs=(-float(session[1:]),) * len(chunk.token_ids), entropies=entropies)


def continues(prompt: ScriptedPrompt) -> str:
    """The rest of a turn in which `says` is asked in the middle of its first words."""
    before, _, begun = prompt.text.rpartition(ASSISTANT_OPENING)
    said = says(replace(prompt, text=before)).replace("</reason>", "?</reason>")
    return said[len(begun) :]


@pytest.mark.parametrize("points", ["entropy", "random"])
async def test_a_branch_inside_a_turn_has_its_first_tokens_and_the_notebook_before_it(
    executor: LocalExecutor, tmp_path: Path, points: str
) -> None:
    roller = make_roller(lambda: (JupyterTool(executor),), executor, continues, Unsure)
    seen: list[Trace] = []
    wanted = requests(10, TreeSettings(2, num_rounds=2, points=points))
    traces = await roller.run(wanted, LIMITS, Sampling(entropies=True), seen.append)
    by_id = {trace.id: trace for trace in traces}
    assert all(trace.parent for trace in traces[2:])
    assert sum(trace.num_shared_tokens > 0 for trace in traces) >= 4
    for trace in traces[2:]:
        parent, turn, num = by_id[trace.parent], trace.num_shared_turns, trace.num_shared_tokens
        assert trace.turns[:turn] == parent.turns[:turn]
        theirs, ours = parent.turns[turn], trace.turns[turn]
        assert ours.token_ids[:num] == theirs.token_ids[:num]
        assert ours.log_probs[:num] == theirs.log_probs[:num] and ours.entropies[:num] == theirs.entropies[:num]
        assert set(ours.log_probs[num:]) == {-float(trace.id[1:])}, "the rest is its own"
        assert ours.text == CHAT.tokenizer.decode(ours.token_ids)
        if points == "entropy":
            is_first = bool(parent.parent) and turn == parent.num_shared_turns
            assert num == parent.num_shared_tokens + 1 if is_first else asks(theirs.token_ids[num])
    for trace in traces:
        values = trace.results[1].text.strip("[]").split(", ")
        assert len(values) == 2 and values[0] == "6", "no call of another branch was made in its notebook"
    assert left_in_driver(roller.driver) == []

    path = tmp_path / "traces.jsonl"
    with RecordWriter[Trace](path) as writer:
        for trace in seen:
            writer.append(stored(trace))
    assert [trace for trace, _ in iterate_traces(path)] == seen
    again = await roller.run(wanted, LIMITS, Sampling(entropies=True))
    assert [(trace.token_ids, trace.parent) for trace in again] == [(trace.token_ids, trace.parent) for trace in traces]


async def test_without_entropies_nothing_is_forked_by_them(executor: LocalExecutor) -> None:
    roller = make_roller(lambda: (JupyterTool(executor),), executor)
    traces = await roller.run(requests(4, TreeSettings(1, points="entropy")), LIMITS, Sampling())
    assert all(not trace.parent for trace in traces)


async def test_a_tree_of_roots_is_what_flat_rollouts_are(executor: LocalExecutor) -> None:
    roller = make_roller(lambda: (JupyterTool(executor),), executor)
    flat = await roller.run(requests(3, None), LIMITS, Sampling())
    for points in FORK_POINTS:
        tree = await roller.run(requests(3, TreeSettings(3, points=points)), LIMITS, Sampling())
        assert [trace.token_ids for trace in tree] == [trace.token_ids for trace in flat]
        assert [(trace.reward, trace.parent) for trace in tree] == [(trace.reward, "") for trace in flat]


async def test_a_budget_of_tokens_ends_a_tree_and_the_rest_comes_back_unsampled(executor: LocalExecutor) -> None:
    roller = make_roller(lambda: (JupyterTool(executor),), executor)
    whole = await roller.run(requests(8, TreeSettings(2)), LIMITS, Sampling())
    roots, branches = whole[:2], whole[2:]
    budget = sum(trace.num_generated_tokens for trace in roots) + 2 * max(
        trace.num_generated_tokens for trace in branches
    )
    seen: list[Trace] = []
    resuming = ResumingRoller(roller, lambda: "w")
    wanted = requests(8, TreeSettings(2, max_generated_tokens=budget))
    traces = await resuming.run(wanted, LIMITS, Sampling(), seen.append)
    num_sampled = sum(trace.outcome is not Outcome.BEYOND_BUDGET for trace in traces)
    assert 4 <= num_sampled < 8
    assert [trace.token_ids for trace in traces[:num_sampled]] == [trace.token_ids for trace in whole[:num_sampled]]
    assert all(trace.turns == () and trace.reward is None for trace in traces[num_sampled:])
    assert sorted(trace.id for trace in seen) == [f"t{n}" for n in range(8)]
    assert sum(trace.num_generated_tokens for trace in traces) <= budget
    resuming.remember({trace.id: trace for trace in traces})
    assert await resuming.run(wanted, LIMITS, Sampling()) == traces, "a tree that its budget ended is complete"


async def test_policies_do_not_know_rewards_at_test_time(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Leaf] = []

    def listen(facts: ForkFacts, num_leaves: int, _rng: np.random.Generator) -> list[int]:
        told.extend(facts.leaves)
        return [0] * num_leaves

    monkeypatch.setattr(policies, "uniform", listen)
    roller = make_roller(lambda: (JupyterTool(executor),), executor)
    await roller.run(requests(4, TreeSettings.for_search(4)), LIMITS, Sampling())
    assert told and all(leaf.reward is None and not leaf.is_right for leaf in told)
    told.clear()
    await roller.run(requests(4, TreeSettings(1)), LIMITS, Sampling())
    assert told and all(leaf.reward is not None for leaf in told)


async def test_a_tree_is_resumed_as_a_whole_or_sampled_again(executor: LocalExecutor) -> None:
    roller = ResumingRoller(make_roller(lambda: (JupyterTool(executor),), executor), lambda: "w")
    wanted = requests(6, TreeSettings(2))
    first = await roller.run(wanted, LIMITS, Sampling())
    roller.remember({trace.id: trace for trace in first})
    assert await roller.run(wanted, LIMITS, Sampling()) == first, "as it was, with its times"
    roller.remember({trace.id: trace for trace in first[:-1]})
    again = await roller.run(wanted, LIMITS, Sampling())
    assert all(new is not old for new, old in zip(again, first, strict=True))
    assert [(trace.token_ids, trace.parent) for trace in again] == [(trace.token_ids, trace.parent) for trace in first]


async def test_a_tree_that_is_given_up_leaves_nothing(executor: LocalExecutor) -> None:
    begun = asyncio.Event()

    def reply(prompt: ScriptedPrompt) -> str:
        if prompt.session == "t3":
            begun.set()
            return cell("import time; time.sleep(1000)")
        return says(prompt)

    roller = make_roller(lambda: (JupyterTool(executor),), executor, reply)
    run = asyncio.create_task(roller.run(requests(4, TreeSettings(2)), LIMITS, Sampling()))
    await asyncio.wait_for(begun.wait(), 240)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert left_in_driver(roller.driver) == []


async def test_a_tree_that_is_given_up_as_it_closes_its_copies_closes_all_of_them() -> None:
    closing, closed = asyncio.Event(), list[int]()

    class Slow:
        async def close(self) -> None:
            closing.set()
            closed.append(0)
            await asyncio.sleep(0.01)

    async def roll_round(leaves: Sequence[LeafRequest]) -> list[Trace]:
        for leaf in leaves:
            state = ForkPoint(leaf.request.trace_id, Transcript("", (1,)), Slow())
            if leaf.states is not None:
                leaf.states.extend([state] * 3)
        return [Trace(leaf.request.trace_id, "p", (1,), "", (), Outcome.TRUNCATED) for leaf in leaves]

    growing = asyncio.create_task(grow(requests(3, None), TreeSettings(2), roll_round))
    await closing.wait()
    growing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await growing
    assert len(closed) == 6
