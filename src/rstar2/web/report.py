"""Writes the viewer as one HTML file with a sample of the run: to send, to keep, to open without a server.

Invariant: the file's policy permits only its own script and style, by their hashes; the data are in a script element
that is not executed, with every `<` escaped, so no text of a model can end it.
"""

import json
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from rstar2.records import Selection, Trace
from rstar2.records.run_layout import segment_steps
from rstar2.web.assets import PAGE, STYLE, assets, bundled_script, source_hash
from rstar2.web.run_reader import RunReader, open_runs
from rstar2.web.step_reader import RolloutRow, StepReader
from rstar2.web.summary import summarise
from rstar2.web.tool_calls import tool_call_statistics
from rstar2.web.trace_wire import group_row_json, row_json, trace_json

NUM_STEPS = 8
"""The number of steps with rollouts in the report, evenly spread; the curves hold all steps."""
MAX_SAMPLE_BYTES = 4 << 20
"""Bytes of traces, as stored on disk: the file has a few megabytes, which browsers and mail accept."""
MAX_ROW_PAGES = 16
NUM_DIGITS = 4
"""The decimals of log-probabilities and entropies: enough for a reader."""


def render_report(run: Path, *, tokenizer: Path | None = None) -> str:
    """The self-contained page about the run at `run`."""
    [reader] = open_runs([run], tokenizer)
    return page_with({"runs": [_run_data(reader)]})


def page_with(data: dict[str, Any]) -> str:
    style, script = assets()[STYLE].body.decode(), bundled_script()
    policy = (
        f"default-src 'none'; script-src {source_hash(script)}; style-src {source_hash(style)}; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    # "<" can neither end this element nor start a comment in it; JSON reads the escape as the same character.
    embedded = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = assets()[PAGE].body.decode()
    for placeholder, text in (
        ("<!-- policy -->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        ('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>"),
        (
            '<script type="module" src="main.js"></script>',
            f'<script type="application/json" id="data">{embedded}</script>\n<script type="module">{script}</script>',
        ),
    ):
        before, found, after = page.partition(placeholder)
        assert found, f"{PAGE} has no {placeholder}"
        page = before + text + after
    return page


def _run_data(reader: RunReader) -> dict[str, Any]:
    steps = reader.steps()
    held = evenly([step for step, _ in steps["traces"]], NUM_STEPS)
    scheduled = evenly(steps["schedule"], NUM_STEPS)
    share = MAX_SAMPLE_BYTES // max(1, len(held))
    return {
        "overview": reader.overview(),
        "recipe": reader.recipe(),
        "metrics": _all_rows(reader.metrics),
        "events": _all_rows(reader.events),
        "steps": {
            "traces": [pair for pair in steps["traces"] if pair[0] in held],
            "groups": segment_steps(reader.view.layout.groups),
            "schedule": scheduled,
        },
        "num_steps": len(steps["traces"]),
        "step": [[step, _step_data(reader, step, share)] for step in held],
        "schedule": [[step, reader.schedule(step)] for step in scheduled],
    }


def evenly(items: list[int], count: int) -> list[int]:
    """`count` evenly spread items, including the first and the last."""
    if len(items) <= count:
        return items
    return [items[round(n * (len(items) - 1) / (count - 1))] for n in range(count)]


def _all_rows(read: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """All metrics or events, up to a limit that real runs do not reach."""
    rows: list[Any] = []
    offset = 0
    for _ in range(MAX_ROW_PAGES):
        page = read(offset)
        rows += page["rows"]
        offset = page["next"]
        if page["is_end"]:
            break
    return {"rows": rows, "next": offset, "is_end": True}


def _step_data(reader: RunReader, step: int, max_bytes: int) -> dict[str, Any]:
    step_reader, candidates = reader.sample(step, 4 * max_bytes)
    traces = _choose(step_reader, candidates, max_bytes)
    rows = [RolloutRow(start, summarise(trace)) for start, trace in traces]
    find, place_of, groups = step_reader.table.find, step_reader.table.place_of, step_reader.table.groups
    numbers = sorted({place_of[trace.id][0] for _, trace in traces if trace.id in place_of})
    without_group = Counter(trace.problem_id for _, trace in traces if trace.id not in place_of)
    questions = {row.summary.problem_id: row.summary.question for row in rows}
    problems = [group_row_json(number, groups[number], questions.get(groups[number].problem_id)) for number in numbers]
    problems += [
        {"problem_id": problem_id, "question": questions[problem_id], "num_rollouts": count}
        for problem_id, count in without_group.items()
    ]
    return {
        "num_sampled": len(traces),
        "is_sampled": len(traces) < len(step_reader.index.entries) or not step_reader.index.is_complete,
        "problems": problems,
        "rollouts": [row_json(row, find(row.summary.id)) for row in rows],
        "traces": [
            {
                **_rounded(trace_json(start, trace, find(trace.id), reader.vocabulary)),
                "group": place_of[trace.id][0] if trace.id in place_of else None,
            }
            for start, trace in traces
        ],
        "tool_calls": tool_call_statistics(rows),
    }


def _choose(reader: StepReader, candidates: list[tuple[int, Trace]], max_bytes: int) -> list[tuple[int, Trace]]:
    """Choose complete groups, trained ones before dropped ones, then rollouts without a group, until the budget is
    spent; at least one group."""
    sizes = {entry.start: entry.num_bytes for entry in reader.index.entries}
    groups = reader.table.groups

    def order(item: tuple[int, Trace]) -> tuple[bool, int]:
        start, trace = item
        if trace.id not in reader.table.place_of:
            return True, len(groups) + start
        number, _ = reader.table.place_of[trace.id]
        return Selection.KEPT not in groups[number].selections, number

    chosen: list[tuple[int, Trace]] = []
    for _, members in groupby(sorted(candidates, key=order), key=order):
        rollouts = list(members)
        max_bytes -= sum(sizes[start] for start, _ in rollouts)
        if max_bytes < 0 and chosen:
            break
        chosen += rollouts
    return sorted(chosen, key=lambda item: item[0])


def _rounded(trace: dict[str, Any]) -> dict[str, Any]:
    for turn in trace["turns"]:
        for name in ("log_probs", "entropies"):
            turn["tokens"][name] = [round(value, NUM_DIGITS) for value in turn["tokens"][name]]
    return trace
