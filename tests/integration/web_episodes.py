"""A run directory with an episode of every kind: several tools, user turns, parts of a reward, faults."""

from pathlib import Path

from web_runs import answering_turn, calling_turn, create, make_group, make_trace

from rstar2.records import Outcome, Selection, StopReason, ToolCall, ToolResult, ToolStatus, Trace, Turn, Verdict

FAULT = 'duel.py, line 31, in reset: KeyError: "map"'
UNDECIDED = "duel.py, line 58, in get_reward: took more than 30 s"
LONG_TEXT = "Dear reader,\n" + "this is a long letter, with <b>tags</b> that stay text. " * 12


def _appended(text: str) -> str:
    return f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<reason>"


def _speaking_turn(text: str, reply: str = "") -> Turn:
    return Turn(
        token_ids=(1, 2, 3),
        log_probs=(-0.5, -0.25, -1.0),
        text=f"{text}<|im_end|>",
        stop_reason=StopReason.END_OF_TURN,
        appended_ids=(7, 8) if reply else (),
        appended_text=_appended(reply) if reply else "",
        generate_s=0.5,
    )


def _calling_turn(*calls: tuple[ToolCall, ToolResult]) -> Turn:
    responses = "\n".join(f"<tool_response>\n{result.text}\n</tool_response>" for _, result in calls)
    return Turn(
        token_ids=(1, 2),
        log_probs=(-0.5, -0.25),
        text="I look it up.</reason>\n" + "<tool_call>\n{}\n</tool_call>" * len(calls) + "<|im_end|>",
        stop_reason=StopReason.END_OF_TURN,
        calls=tuple(call for call, _ in calls),
        results=tuple(result for _, result in calls),
        appended_ids=(7, 8),
        appended_text=_appended(responses),
        generate_s=0.5,
        tool_s=1.0,
    )


def conversation() -> Trace:
    """Two user turns, a reward with parts and no verdict."""
    prompt = (
        "<|im_start|>system\nPlay.<|im_end|>\n<|im_start|>user\nShall we play?<|im_end|>\n"
        "<|im_start|>assistant\nWith pleasure.<|im_end|>\n<|im_start|>user\nYou stand before a door."
        "<|im_end|>\n<|im_start|>assistant\n<reason>"
    )
    turns = (
        _speaking_turn("I knock.", "Nobody answers."),
        _speaking_turn("I open it.", "A dragon!"),
        _speaking_turn("I run."),
    )
    return make_trace(
        "t-talk",
        problem_id="door",
        turns=turns,
        prompt_text=prompt,
        verdict=None,
        reward=0.625,
        answer=None,
        environment="duel",
        metadata={"score/alive": "0.5", "score/gold": "0.125"},
        group_id="g0",
    )


def search() -> Trace:
    """Several tools, several arguments, a long one."""
    found = ToolResult(ToolStatus.OK, "doc-7: On letters", wall_s=0.25)
    refused = ToolResult(ToolStatus.BAD_ARGUMENTS, "limit: must be a number", wall_s=0.01)
    turns = (
        _calling_turn(
            (ToolCall("{}", "search", {"query": "letters", "limit": 5, "filters": {"year": 1999}}), found),
            (ToolCall("{}", "search", {"query": "def words", "limit": "many"}), refused),
        ),
        _calling_turn((ToolCall("{}", "write", {"text": LONG_TEXT}), ToolResult(ToolStatus.NO_OUTPUT, wall_s=0.1))),
        calling_turn("print(7)", ToolResult(ToolStatus.OK, "7")),
        answering_turn("doc-7"),
    )
    return make_trace("t-search", problem_id="letters", turns=turns, answer="doc-7", environment="search")


def episodes() -> list[Trace]:
    talk = conversation()
    fault = make_trace(
        "t-fault",
        sample_index=1,
        problem_id="door",
        outcome=Outcome.INFRASTRUCTURE_FAULT,
        verdict=None,
        reward=None,
        answer=None,
        note=FAULT,
        environment="duel",
        metadata={},
        group_id="g0",
        turns=[_speaking_turn("I knock.")],
    )
    undecided = make_trace(
        "t-undecided",
        sample_index=2,
        problem_id="door",
        verdict=Verdict.UNDECIDED,
        reward=None,
        answer=None,
        note=UNDECIDED,
        environment="duel",
        metadata={},
        group_id="g0",
        turns=[_speaking_turn("I knock.")],
    )
    return [talk, fault, undecided, search(), make_trace("t-math")]


def write_episodes_run(path: Path) -> None:
    traces = episodes()
    with create(path) as run:
        for step in (1, 2):
            values = {"reward_mean": 0.5 + 0.1 * step, "accuracy": 0.25 * step, "entropy": 0.5}
            parts = {"reward/alive": 0.25 * step, "reward/gold": 0.125}
            mixed = {
                f"{name}/{metric}": value * step
                for name, value in (("duel", 0.2), ("search", 0.4), ("default", 0.1))
                for metric in ("reward_mean", "accuracy", "tool_error_share", "num_rollouts")
            }
            run.write_metrics(step, "one", {**values, **parts, **mixed})
        for trace in traces:
            run.write_trace(trace)
        kept = [Selection.KEPT, Selection.UNSCORED, Selection.UNSCORED]
        run.write_group(make_group("g0", 1, traces[:3], kept))
