"""Rollouts of a scripted model on the real sandbox: in order, judged, and never rewarded for a fault of ours."""

from dataclasses import replace

import pytest
from train_rollouts import LIMITS, LOST, PERHAPS, answer, call, make_roller

from rstar2.engine import Sampling
from rstar2.environments import Judgement
from rstar2.environments.plain_episode import PlainEnvironment
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Outcome, Problem, ToolStatus, Trace, Verdict
from rstar2.rollout import judge as module
from rstar2.rollout.request import RolloutRequest
from rstar2.rollout.resume import ResumingRoller
from rstar2.sandbox import Executor

pytestmark = pytest.mark.integration

TURNS = {
    "tool": (call("print(6 * 7)"), answer(42)),
    "wrong": (answer(41),),
    "silent": (" nothing to say</reason>",),
    "long": (answer(42) + "x" * 4000,),
    "caller": (call("print(1)"),) * 3,
    "lost": (call(LOST), answer(42)),
    "undecided": (f" {PERHAPS}" + answer(42),),
    "raises": (call("1 / 0"), answer(42)),
}
EXPECTED = {
    "tool": (Outcome.ANSWERED, Verdict.RIGHT, 1.0),
    "wrong": (Outcome.ANSWERED, Verdict.WRONG, 0.0),
    "silent": (Outcome.ANSWERED, Verdict.NO_ANSWER, 0.0),
    "long": (Outcome.TRUNCATED, None, 0.0),
    "caller": (Outcome.TURN_LIMIT, Verdict.NO_ANSWER, 0.0),
    "lost": (Outcome.INFRASTRUCTURE_FAULT, None, None),
    "undecided": (Outcome.ANSWERED, Verdict.UNDECIDED, None),
    "raises": (Outcome.ANSWERED, Verdict.RIGHT, 1.0),
}


def requests(names: list[str]) -> list[RolloutRequest]:
    return [
        RolloutRequest(Problem(name, name, "42"), f"t-{name}", f"g-{name}", index, 3, "first", seed=index)
        for index, name in enumerate(names)
    ]


async def test_one_judged_trace_a_request_in_their_order(remote: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RETRIES", 0)
    roller = make_roller(remote, lambda _id, question, turn: TURNS[question][turn])
    seen: list[Trace] = []
    wanted = requests([*TURNS])
    traces = await roller.run(wanted, LIMITS, Sampling(), seen.append)
    assert [trace.id for trace in traces] == [request.trace_id for request in wanted]
    assert sorted(trace.id for trace in seen) == sorted(trace.id for trace in traces)
    by_name = {trace.problem_id: trace for trace in traces}
    assert {name: (trace.outcome, trace.verdict, trace.reward) for name, trace in by_name.items()} == EXPECTED
    for request, trace in zip(wanted, traces, strict=True):
        assert (trace.group_id, trace.sample_index, trace.step) == (request.group_id, request.sample_index, 3)
        assert trace.model == "scripted"
        assert await roller.num_prompt_tokens([request.problem]) == [len(trace.prompt_ids)]
    assert [result.text for result in by_name["tool"].results] == ["42"]
    assert by_name["raises"].results[0].status is ToolStatus.RAISED
    assert (by_name["tool"].answer, by_name["undecided"].note) == ("42", "it could not tell")


async def test_what_had_ended_before_an_interruption_comes_back_as_it_was_to_the_same_weights(
    remote: Executor,
) -> None:
    rolled: list[str] = []
    weights = "first"

    def says(_id: str, question: str, turn: int) -> str:
        rolled.append(question)
        return TURNS[question][turn]

    names = ["tool", "wrong", "lost", "undecided"]
    roller = ResumingRoller(make_roller(remote, says), lambda: weights)
    earlier = await roller.run(requests(names), LIMITS, Sampling())
    assert {trace.weights for trace in earlier} == {"first"}
    roller.remember({trace.id: trace for trace in earlier})
    rolled.clear()
    seen: list[str] = []
    again = await roller.run(requests([*names, "silent"]), LIMITS, Sampling(), lambda trace: seen.append(trace.id))
    assert again[:2] == earlier[:2], "not rolled out again, with the times that it took"
    assert set(rolled) == {"lost", "undecided", "silent"}, "what our fault spoilt is"
    assert sorted(seen) == sorted(trace.id for trace in again)
    rolled.clear()
    await roller.run(requests(["tool"]), LIMITS, Sampling())
    assert set(rolled) == {"tool"}, "each comes back once"

    for others, older, comes_back in (("second", (), False), ("second", ("first",), True), ("", (), False)):
        weights = others
        rolled.clear()
        roller.remember({trace.id: trace for trace in earlier}, older)
        (found,) = await roller.run(requests(["tool"]), LIMITS, Sampling())
        assert (found == earlier[0]) == comes_back == (not rolled)
        assert found.weights == ("first" if comes_back else others)


async def test_a_rollout_during_which_the_weights_changed_is_of_none(remote: Executor) -> None:
    weights = "first"

    def says(_id: str, question: str, turn: int) -> str:
        nonlocal weights
        if turn == 1:
            weights = "second"
        return TURNS[question][turn]

    roller = ResumingRoller(make_roller(remote, says), lambda: weights)
    (trace,) = await roller.run(requests(["tool"]), LIMITS, Sampling())
    assert trace.weights == ""
    roller.remember({trace.id: trace})
    weights = ""
    (again,) = await roller.run(requests(["tool"]), LIMITS, Sampling())
    assert again is not trace


async def test_a_judge_that_is_out_of_order_is_asked_again_and_in_the_end_leaves_it_undecided(
    remote: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    roller = make_roller(remote, lambda *_: answer(42))
    environment, num_asked = roller._environments[""], 0
    assert isinstance(environment, PlainEnvironment)

    async def failing(problem: Problem, trace: Trace) -> Judgement:
        nonlocal num_asked
        num_asked += 1
        if problem.id == "never" or num_asked == 1:
            raise InfrastructureError("no worker")
        return await environment.judge(problem, trace)

    monkeypatch.setattr(roller, "_environments", {"": replace(environment, judge=failing)})
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)
    (once,) = await roller.run(requests(["once"]), LIMITS, Sampling())
    assert (once.verdict, once.reward) == (Verdict.RIGHT, 1.0)
    (never,) = await roller.run(requests(["never"]), LIMITS, Sampling())
    assert (never.verdict, never.reward) == (Verdict.UNDECIDED, None)
    assert "no worker" in never.note


async def test_what_can_never_work_is_raised_when_all_others_have_ended(remote: Executor) -> None:
    def says(_id: str, question: str, _turn: int) -> str:
        if question == "impossible":
            raise UserError("a prompt beyond the context")
        return answer(42)

    seen: list[str] = []
    with pytest.raises(UserError, match="beyond the context"):
        await make_roller(remote, says).run(
            requests(["a", "impossible", "b"]), LIMITS, Sampling(), lambda trace: seen.append(trace.problem_id)
        )
    assert sorted(seen) == ["a", "b"]


async def test_a_box_in_tool_output_is_no_answer(remote: Executor) -> None:
    """A program can print an answer block; only the model can give one."""

    def says(_rollout: str, _question: str, turn: int) -> str:
        return call(r"print('<answer>\\boxed{4}</answer>')") if turn == 0 else " it was printed</reason>"

    roller = make_roller(remote, says)
    request = RolloutRequest(Problem("p", "two and two", "4"), "r")
    [trace] = await roller.run([request], LIMITS, Sampling())
    assert r"\boxed{4}" in trace.turns[0].appended_text
    assert (trace.verdict, trace.answer, trace.reward) == (Verdict.NO_ANSWER, None, 0.0)
