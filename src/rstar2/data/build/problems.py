"""Converts rows to problems for reinforcement learning. Pure; `curate` decides later whether a problem is fit."""

from dataclasses import replace

from rstar2.data.build.source import BuildSource, LeftOut, LeftOutError
from rstar2.data.catalog_set import HubSource
from rstar2.data.cells import as_text, find, optional_text, require
from rstar2.data.problem_rows import ANSWER_COLUMNS, content_id, problems_of
from rstar2.data.rows import Row
from rstar2.records import Problem

FILE = "rl-42k"
"""The file's name in the recipe. The number is the report's, however many problems there are."""
_EXTRACTED = "has_answer_extracted"


def convert_dapo(row: Row) -> Problem:
    """Converts a row with verl's columns, with or without the instructions around the problem."""
    if find(row, ANSWER_COLUMNS) is None:
        raise LeftOutError(LeftOut.NO_ANSWER)
    (found,) = problems_of([Row({**row.values, "id": None, "data_source": None}, row.where)], "")
    return _problem(found.problem, found.answer)


def convert_open_math_reasoning(row: Row) -> Problem:
    """Converts a row, of which there is one for each generated solution, so most repeat a problem. Only answers that
    the forum itself gave are taken."""
    answer = optional_text(row, ("expected_answer",))
    if answer is None:
        raise LeftOutError(LeftOut.NO_ANSWER)
    if (kind := optional_text(row, ("problem_type",))) != _EXTRACTED:
        raise LeftOutError(LeftOut.VOTED_ANSWER, kind or "")
    text = as_text(require(row, ("problem",), "problem")[1], row, "problem")
    return _problem(text, answer.strip(), optional_text(row, ("problem_source",)))


def convert_project_euler(row: Row) -> Problem:
    found = find(row, ("answer", "numerical_answer", "solution"))
    if found is None:
        raise LeftOutError(LeftOut.NO_ANSWER)
    text = as_text(require(row, ("problem",), "problem")[1], row, "problem")
    level = optional_text(row, ("difficulty",))
    return _problem(text, as_text(found[1], row, "answer"), optional_text(row, ("title",)), level)


def _problem(text: str, answer: str, subject: str | None = None, level: str | None = None) -> Problem:
    made = Problem("", text, answer, level=level, subject=subject)
    return replace(made, id=content_id(made))


DAPO = BuildSource(
    file=FILE,
    hub=HubSource(
        "open-r1/DAPO-Math-17k-Processed",
        "31dd309567e3da778038cc87d868b6097a3ccf68",
        ("all/train-*.parquet",),
    ),
    num_rows=17_398,
    licence="Apache-2.0",
    convert=convert_dapo,
)

OPEN_MATH_REASONING = BuildSource(
    file=FILE,
    hub=HubSource("nvidia/OpenMathReasoning", "d3d08664755704f422af97d43a7ff0ded4bd95df", ("data/cot-*.parquet",)),
    num_rows=3_201_061,
    licence="CC BY 4.0",
    convert=convert_open_math_reasoning,
    columns=("problem", "expected_answer", "problem_type", "problem_source"),
)

PROJECT_EULER = BuildSource(
    file=FILE,
    hub=HubSource("PatrickHaller/pecc", "b5d5f80c70be9e82aa1f7ab04a00b22c48bea011", ("euler/test-*.parquet",)),
    num_rows=806,
    licence="MIT (the collection); problems CC BY-NC-SA 4.0, Project Euler",
    convert=convert_project_euler,
)
