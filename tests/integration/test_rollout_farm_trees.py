"""Trees in several processes: the same ones as in a single process."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from farm_rollers import LIMITS, cell, open_rollers
from train_rollouts import CHAT, answer

from rstar2.engine import Sampling
from rstar2.engine.process.host import serve_guest
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.records import Outcome, Problem, Trace
from rstar2.rollout.farm import RollerFarm
from rstar2.rollout.request import RolloutRequest, Rolls
from rstar2.rollout.trees import TreeSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NUM_WORKERS, NUM_PROBLEMS, NUM_LEAVES = 2, 3, 6
DEADLINE_S = 300.0


def says(prompt: ScriptedPrompt) -> str:
    """Two calls of a notebook, to which each rollout adds its own number, and an answer: every third one is right."""
    number = int(prompt.session.rpartition("t")[2])
    match prompt.text.count("<tool_response>"):
        case 0:
            return cell(f"x = [{number}]\nprint(x)")
        case 1:
            return cell(f"x.append({number})\nprint(x)")
        case _:
            return answer(42 if number % 3 == 0 else number)


@pytest.fixture
async def farm() -> AsyncIterator[RollerFarm]:
    engine = ScriptedEngine(says, CHAT.tokenizer, CHAT.end_of_turn_id)
    pairs = [socket.socketpair() for _ in range(NUM_WORKERS)]
    visits = [asyncio.create_task(serve_guest(engine, ours)) for ours, _ in pairs]
    try:
        async with RollerFarm.opened(open_rollers, [theirs for _, theirs in pairs]) as farm:
            yield farm
    finally:
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)


def requests(tree: TreeSettings) -> list[RolloutRequest]:
    """Leaf by leaf, so that those of one tree are not together."""
    return [
        RolloutRequest(Problem(f"p{p}", f"compute {p}", "42"), f"t{n}", f"g{p}", leaf, 1, "kv-aware", seed=n, tree=tree)
        for n, (leaf, p) in enumerate((leaf, p) for leaf in range(NUM_LEAVES) for p in range(NUM_PROBLEMS))
    ]


async def sampled(roller: Rolls, wanted: list[RolloutRequest]) -> list[Trace]:
    seen: list[Trace] = []
    async with asyncio.timeout(DEADLINE_S):
        traces = await roller.run(wanted, LIMITS, Sampling(), seen.append)
    assert [trace.id for trace in traces] == [request.trace_id for request in wanted]
    assert sorted(trace.id for trace in seen) == sorted(trace.id for trace in traces)
    return traces


def without_times(trace: Trace) -> tuple[object, ...]:
    texts = [result.text for result in trace.results]
    return trace.outcome, trace.token_ids, trace.parent, trace.num_shared_turns, trace.reward, texts


async def test_a_farm_samples_the_trees_that_one_process_samples(farm: RollerFarm) -> None:
    joining: asyncio.Future[ScriptedEngine] = asyncio.get_running_loop().create_future()
    joining.set_result(ScriptedEngine(says, CHAT.tokenizer, CHAT.end_of_turn_id))
    async with open_rollers(joining) as alone:

        async def of_both(tree: TreeSettings) -> list[Trace]:
            wanted = requests(tree)
            traces = await sampled(farm, wanted)
            assert list(map(without_times, traces)) == list(map(without_times, await sampled(alone, wanted)))
            assert sum(bool(trace.parent) for trace in traces) >= NUM_PROBLEMS
            return traces

        whole = await of_both(TreeSettings(2, num_rounds=2, policy="random"))
        assert all(trace.outcome is Outcome.ANSWERED for trace in whole)
        num_tokens = sum(trace.num_generated_tokens for trace in whole) // NUM_PROBLEMS
        cut = await of_both(
            TreeSettings(2, num_rounds=2, policy="uncertainty", max_generated_tokens=num_tokens * 9 // 10)
        )
        assert any(trace.outcome is Outcome.BEYOND_BUDGET for trace in cut)
    await farm.end_step()  # raises if anything of the trees is left
