"""Run directories for the viewer's tests: small ones by hand, long ones, and one whose every text is an attack."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from rstar2.records import (
    EngineSample,
    EngineUse,
    Group,
    Outcome,
    RolloutSpan,
    RunDirectory,
    Selection,
    SpanKind,
    StepRecord,
    StopReason,
    ToolCall,
    ToolResult,
    ToolStatus,
    Trace,
    Turn,
    Verdict,
)
from rstar2.records.trace import GOLD_KEY

Record = TypeVar("Record")

TOOL = "execute_python_code_with_standard_io"


def calling_turn(code: str, result: ToolResult, reasoning: str = "I compute it.", num_tokens: int = 3) -> Turn:
    return Turn(
        token_ids=tuple(range(num_tokens)),
        log_probs=tuple(-0.5 * n for n in range(num_tokens)),
        entropies=tuple(0.25 * n for n in range(num_tokens)),
        text=f"{reasoning}</reason>\n<tool_call>\n{{}}\n</tool_call><|im_end|>",
        stop_reason=StopReason.END_OF_TURN,
        calls=(ToolCall(raw="{}", name=TOOL, arguments={"code": code, "input": ""}),),
        results=(result,),
        appended_ids=(7, 8),
        appended_text=f"\n<|im_start|>user\n{result.text}<|im_end|>\n<|im_start|>assistant\n<reason>",
        generate_s=1.0,
        tool_s=0.5,
    )


def answering_turn(answer: str, reasoning: str = "So that is it.", num_tokens: int = 4) -> Turn:
    return Turn(
        token_ids=tuple(range(num_tokens)),
        log_probs=(-0.1,) * num_tokens,
        entropies=(0.1,) * num_tokens,
        text=f"{reasoning}</reason>\n<answer>\\boxed{{{answer}}}</answer><|im_end|>",
        stop_reason=StopReason.END_OF_TURN,
        generate_s=0.5,
    )


def make_trace(trace_id: str, step: int = 1, *, turns: Sequence[Turn] | None = None, **changed: Any) -> Trace:
    question = changed.pop("question", "What is 7^2025 modulo 1000?")
    values: dict[str, Any] = {
        "problem_id": "p0",
        "prompt_ids": (1, 2),
        "prompt_text": f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<reason>",
        "turns": tuple(turns or (calling_turn("print(807)", ToolResult(ToolStatus.OK, "807")), answering_turn("807"))),
        "outcome": Outcome.ANSWERED,
        "verdict": Verdict.RIGHT,
        "reward": 1.0,
        "answer": "807",
        "model": "by hand",
        "metadata": {GOLD_KEY: "807"},
    }
    return Trace(id=trace_id, step=step, **(values | changed))


def make_group(group_id: str, step: int, traces: Sequence[Trace], selections: Sequence[Selection]) -> Group:
    return Group(
        id=group_id,
        problem_id=traces[0].problem_id,
        step=step,
        trace_ids=tuple(trace.id for trace in traces),
        rewards=tuple(trace.reward for trace in traces),
        error_penalties=tuple(0.25 * n for n in range(len(traces))),
        format_penalties=(0.0,) * len(traces),
        advantages=tuple(1.0 if selection is Selection.KEPT else None for selection in selections),
        selections=tuple(selections),
    )


def filled(kind: type[Record], **known: Any) -> Record:
    """A record whose fields are 0 where a test does not care."""
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in known]  # type: ignore[arg-type]
    return kind(**(dict.fromkeys(missing, 0) | known))


def make_step_record(step: int) -> StepRecord:
    samples = [
        filled(EngineSample, at_s=float(at), engine=engine, num_turns=4 - at, kv_share=0.25 * at)
        for at in range(4)
        for engine in ("e0", "e1")
    ]
    engines = [filled(EngineUse, engine=engine, left_s=4.0, busy_s=3.0, idle_s=1.0) for engine in ("e0", "e1")]
    path = (RolloutSpan(SpanKind.QUEUED, 0.0, 1.0), RolloutSpan(SpanKind.GENERATING, 1.0, 4.0, "e1"))
    return filled(
        StepRecord,
        step=step,
        duration_s=4.0,
        num_rollouts=8,
        engines=tuple(engines),
        critical_rollout="t1",
        critical_path=path,
        samples=tuple(samples),
    )


def create(path: Path) -> RunDirectory:
    return RunDirectory.create(path, verb="train", recipe_toml='name = "by-hand"\n', seed=3, argv=["rstar2", "train"])


def write_small_run(path: Path) -> None:
    """Two steps of two stages; step 2 has a group of four: right and clean, right after an error, wrong, truncated."""
    raised = ToolResult(ToolStatus.RAISED, "NameError: name 'x' is not defined", wall_s=0.25)
    clean = make_trace("t0", 2, sample_index=0, group_id="g0")
    fixed = make_trace(
        "t1", 2, sample_index=1, group_id="g0", turns=[calling_turn("print(x)", raised), answering_turn("807")]
    )
    wrong = make_trace(
        "t2",
        2,
        sample_index=2,
        group_id="g0",
        turns=[answering_turn("143", "A guess.")],
        verdict=Verdict.WRONG,
        reward=0.0,
        answer="143",
    )
    cut = make_trace(
        "t3",
        2,
        sample_index=3,
        group_id="g0",
        turns=[Turn((1, 2), (-1.0, -2.0), "So long a tho", StopReason.TOKEN_LIMIT)],
        outcome=Outcome.TRUNCATED,
        verdict=Verdict.NO_ANSWER,
        reward=0.0,
        answer=None,
    )
    with create(path) as run:
        run.write_metrics(1, "one", {"reward_mean": 0.25, "accuracy": 0.25, "entropy": 0.9, "my own": 3})
        run.write_metrics(2, "two", {"reward_mean": 0.5, "accuracy": 0.5, "entropy": 0.7, "my own": 4})
        run.write_metrics(2, "eval:two/aime24", {"accuracy": 0.75})
        run.write_trace(make_trace("t-early", 1))
        for trace in (clean, fixed, wrong, cut):
            run.write_trace(trace)
        run.write_trace(make_trace("t-eval", 3, problem_id="held-out", metadata={"stage": "eval:two"}))
        run.write_trace(make_trace("t-late", 3, group_id="g1"))
        run.write_group(make_group("g1", 3, [make_trace("t-late", 3)], [Selection.EQUAL_REWARDS]))
        kept, left = Selection.KEPT, Selection.DOWNSAMPLED
        run.write_group(make_group("g0", 2, [clean, fixed, wrong, cut], [kept, left, kept, left]))
        run.write_step_record(make_step_record(2))
