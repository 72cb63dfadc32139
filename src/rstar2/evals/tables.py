"""Results as rows, for a terminal and for Markdown, beside those that the report publishes. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rstar2.evals.metrics import BenchmarkResult


@dataclass(frozen=True, slots=True)
class ResultTable:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Results = Mapping[str, BenchmarkResult]


@dataclass(frozen=True, slots=True)
class PublishedModel:
    name: str
    scores: dict[str, float]
    response_tokens: dict[str, int] = field(default_factory=dict)


PUBLISHED = (
    PublishedModel(
        "rStar2-Agent-14B",
        {
            "math500": 97.8,
            "aime24": 80.6,
            "aime25": 69.8,
            "hmmt_feb25": 52.7,
            "gpqa_diamond": 60.9,
            "bfcl": 60.8,
            "ifeval": 83.4,
            "arena_hard": 86.6,
        },
        {"aime24": 9_340, "aime25": 10_943},
    ),
    PublishedModel(
        "its base after SFT only",
        {
            "math500": 57.4,
            "aime24": 3.3,
            "aime25": 0.0,
            "gpqa_diamond": 42.1,
            "bfcl": 63.1,
            "ifeval": 83.7,
            "arena_hard": 86.8,
        },
    ),
    PublishedModel("DeepSeek-R1 671B", {"math500": 97.3, "aime24": 79.8, "aime25": 70.0, "hmmt_feb25": 44.4}),
)

CAVEATS = {
    "bfcl": "BFCL: the published number is of all of v3, also with several turns; measured here is its single-turn "
    "part, all categories together.",
    "arena_hard": "Arena-Hard: a win rate depends on the judge and on the baseline's answers; compare only where both "
    "are the same.",
    "ifeval": "IFEval: the score is prompt-level strict accuracy, one of the official script's four.",
}
"""Why a number here may differ from the published one of the same name, whatever the model."""


def score_table(results: Results) -> ResultTable:
    columns = ("benchmark", "problems", "avg@k", "95% interval", "undecided", "avg@k if wrong", "pass@k", "maj@k")
    return ResultTable("scores, percent", columns, tuple(_score_row(name, result) for name, result in results.items()))


def cost_table(results: Results) -> ResultTable:
    columns = ("benchmark", "tokens", "turns", "calls", "tool errors", "truncated", "no answer", "time", "generated")
    return ResultTable("per sample", columns, tuple(_cost_row(name, result) for name, result in results.items()))


def published_table(results: Results, model: str) -> ResultTable | None:
    """These scores beside the report's; None if the report has none of these benchmarks."""
    own = {name: percent(result.accuracy) for name, result in results.items()}
    others = {row.name: {name: f"{score:.1f}" for name, score in row.scores.items()} for row in PUBLISHED}
    return _side_by_side("side by side with the report", own, others, model)


def published_tokens_table(results: Results, model: str) -> ResultTable | None:
    own = {name: f"{result.mean_response_tokens:,.0f}" for name, result in results.items()}
    others = {row.name: {name: f"{n:,}" for name, n in row.response_tokens.items()} for row in PUBLISHED}
    return _side_by_side("mean response tokens", own, others, model)


def _side_by_side(
    title: str, own: dict[str, str], others: Mapping[str, dict[str, str]], model: str
) -> ResultTable | None:
    shared = [name for name in own if any(name in cells for cells in others.values())]
    if not shared:
        return None
    rows = {f"{model} (here)": own} | {name: cells for name, cells in others.items() if cells}
    return ResultTable(
        title,
        ("model", *shared),
        tuple((name, *(cells.get(key, "") for key in shared)) for name, cells in rows.items()),
    )


def published_scores(results: Results) -> dict[str, dict[str, float]]:
    """The report's percentages of these benchmarks, by model."""
    return {row.name: {name: row.scores[name] for name in results if name in row.scores} for row in PUBLISHED}


def detail_table(results: Results) -> ResultTable | None:
    rows = [
        (name, detail, percent(value)) for name, result in results.items() for detail, value in result.details.items()
    ]
    return ResultTable("details", ("benchmark", "score", "percent"), tuple(rows)) if rows else None


def all_tables(results: Results, model: str) -> list[ResultTable]:
    tables = (
        score_table(results),
        cost_table(results),
        detail_table(results),
        published_table(results, model),
        published_tokens_table(results, model),
    )
    return [table for table in tables if table is not None]


def remarks(results: Results, deviations: Sequence[str]) -> list[str]:
    """Sentences that a reader of the numbers needs: deviations of the protocol, missing samples, and what is not
    comparable."""
    lines = [
        f"Deviates from the report's protocol: {'; '.join(deviations)}." if deviations else "The report's protocol."
    ]
    for name, result in results.items():
        if not result.is_complete:
            lines.append(
                f"{name}: {result.num_undecided} undecided, {result.num_faults} lost through faults and "
                f"{result.num_missing} missing samples are in no score{left_out(result)}."
            )
    return lines + [CAVEATS[name] for name in results if name in CAVEATS]


def left_out(result: BenchmarkResult) -> str:
    """A clause that gives the score if all undecided samples were wrong; empty if none was undecided."""
    if not result.num_undecided:
        return ""
    return f"; if the {result.num_undecided:,} undecided were wrong: {percent(result.accuracy_undecided_wrong)}%"


def markdown(results: Results, model: str, deviations: Sequence[str]) -> str:
    lines = [f"# Evaluation of {_cell(model)}", ""]
    lines += [f"- {_cell(remark)}" for remark in remarks(results, deviations)]
    for table in all_tables(results, model):
        lines += ["", f"## {table.title}", "", *_markdown_rows(table)]
    return "\n".join(lines) + "\n"


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _score_row(name: str, result: BenchmarkResult) -> tuple[str, ...]:
    is_scored = result.num_scored > 0
    interval = f"{percent(result.accuracy_low)} to {percent(result.accuracy_high)}"
    voted = "" if result.majority_at_k is None else percent(result.majority_at_k)
    return (
        name,
        f"{result.num_problems:,} x {result.num_samples}",
        percent(result.accuracy) if is_scored else "none",
        interval if is_scored else "",
        f"{result.num_undecided:,}",
        percent(result.accuracy_undecided_wrong),
        percent(result.pass_at_k) if is_scored else "",
        voted if is_scored else "",
    )


def _cost_row(name: str, result: BenchmarkResult) -> tuple[str, ...]:
    return (
        name,
        f"{result.mean_response_tokens:,.0f}",
        f"{result.mean_turns:.1f}",
        f"{result.mean_tool_calls:.1f}",
        f"{percent(result.tool_error_share)}%",
        f"{percent(result.truncated_share)}%",
        f"{percent(result.no_answer_share)}%",
        f"{result.mean_rollout_seconds:.1f} s",
        f"{result.mean_generated_tokens:,.0f} a problem",
    )


def _markdown_rows(table: ResultTable) -> Sequence[str]:
    rows = [table.columns, ("---",) * len(table.columns), *table.rows]
    return ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
