"""The data sets that have a name here: where on the hub, at which commit, under what licence, and how they are read.

A commit pins the bytes; where the SHA-256 of a file is known as well it is checked too. A set whose commit is not known
here (`revision` is None) is taken as the hub has it at the first download, and that commit is written down and kept.
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from rstar2.data.benchmarks import (
    choice_problems,
    function_call_problems,
    instruction_problems,
    judged_problems,
    multi_turn_call_problems,
)
from rstar2.data.benchmarks.function_calls import SINGLE_TURN_CATEGORIES, WITHOUT_GOLD
from rstar2.data.benchmarks.multi_turn_calls import MULTI_TURN_CATEGORIES
from rstar2.data.problem_rows import answered_problems_of, problems_of
from rstar2.data.rows import Row
from rstar2.errors import UserError
from rstar2.records import Problem

ProblemReader = Callable[[Iterable[Row], str], Iterable[Problem]]


class Kind(StrEnum):
    """What a set is for."""

    BENCHMARK = "benchmark"
    """Measured on. Never trained on, and what training sets are decontaminated against."""
    PROBLEMS = "problems"
    CONVERSATIONS = "conversations"


class Grading(StrEnum):
    """What decides whether a response to a problem of the set is right."""

    ANSWER = "answer"
    """The answer in the box against the gold, by `rstar2.grading`."""
    INSTRUCTIONS = "instructions"
    """IFEval's checks of the full response."""
    CALLS = "calls"
    """BFCL's comparison of the calls that were made."""
    MULTI_TURN_CALLS = "multi_turn_calls"
    """BFCL's comparison of what the calls of a conversation did to simulated services."""
    JUDGE = "judge"
    """A judge model of the user's."""
    NOTHING = "nothing"
    """Conversations are learnt from, not graded."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """Files of a data set on the hub. `files` are names, all of which are needed, or patterns, of which the first that
    matches any file counts."""

    repo: str
    revision: str | None
    files: tuple[str, ...]
    sha256: dict[str, str] = field(default_factory=dict)
    is_gated: bool = False
    """The hub gives it only to accounts that accepted its terms; `HF_TOKEN` must be such an account's."""


@dataclass(frozen=True, slots=True)
class CatalogSet:
    """`stems` are the names that its file may have in a data folder, without the ending."""

    name: str
    kind: Kind
    stems: tuple[str, ...]
    hub: HubSource | None
    num_rows: int
    licence: str
    summary: str
    grading: Grading = Grading.ANSWER
    read: ProblemReader = problems_of


_GSM8K = "openai/gsm8k"
_GSM8K_REVISION = "740312add88f781978c0658806c59bc2815b9866"
_GSM8K_TRAIN = "main/train-00000-of-00001.parquet"
_GSM8K_TEST = "main/test-00000-of-00001.parquet"
_BFCL = "gorilla-llm/Berkeley-Function-Calling-Leaderboard"
_BFCL_REVISION = "61fc0608cfd831fcfbbaa676ebdfef0ed963eeda"
_COMPETITION_LICENCE = "problems (c) MAA"

_SETS = (
    CatalogSet(
        name="aime24",
        kind=Kind.BENCHMARK,
        stems=("aime24",),
        hub=HubSource("HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", ("data/train-*.parquet",)),
        num_rows=30,
        licence=_COMPETITION_LICENCE,
        summary="AIME 2024, both papers",
    ),
    CatalogSet(
        name="aime25",
        kind=Kind.BENCHMARK,
        stems=("aime25",),
        hub=HubSource("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", ("test.jsonl",)),
        num_rows=30,
        licence=_COMPETITION_LICENCE,
        summary="AIME 2025, both papers",
    ),
    CatalogSet(
        name="amc23",
        kind=Kind.BENCHMARK,
        stems=("amc23",),
        hub=HubSource(
            "math-ai/amc23",
            "80815d37005feb82cd7f8fbc6901d5d3eff43057",
            ("data/test-*.parquet", "test*.parquet", "test*.jsonl"),
        ),
        num_rows=40,
        licence=_COMPETITION_LICENCE,
        summary="AMC 12 of 2023, problems with integer answers",
    ),
    CatalogSet(
        name="gsm8k",
        kind=Kind.BENCHMARK,
        stems=("gsm8k_test", "gsm8k"),
        hub=HubSource(
            _GSM8K,
            _GSM8K_REVISION,
            (_GSM8K_TEST,),
            {_GSM8K_TEST: "ee7b8da9e381df27b9e3f7758a159ab2bdaa4dbaa910546cbbc47e0cb44e4f59"},
        ),
        num_rows=1319,
        licence="MIT",
        summary="grade school word problems, test split",
    ),
    CatalogSet(
        name="hmmt_feb25",
        kind=Kind.BENCHMARK,
        stems=("hmmt_feb_2025", "hmmt_feb25"),
        hub=HubSource("MathArena/hmmt_feb_2025", "6fdc4277120810ff75aa22d2d5489b91f7a262a1", ("data/train-*.parquet",)),
        num_rows=30,
        licence="CC BY-NC-SA 4.0; problems (c) HMMT",
        summary="HMMT February 2025",
    ),
    CatalogSet(
        name="math500",
        kind=Kind.BENCHMARK,
        stems=("math500",),
        hub=HubSource(
            "HuggingFaceH4/MATH-500",
            "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
            ("test.jsonl",),
            {"test.jsonl": "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"},
        ),
        num_rows=500,
        licence="MIT",
        summary="500 problems of MATH's test split",
    ),
    CatalogSet(
        name="gpqa_diamond",
        kind=Kind.BENCHMARK,
        stems=("gpqa_diamond",),
        hub=HubSource(
            "Idavidrein/gpqa", "633f5ee89ab8ad4522a9f850766b73f62147ffdd", ("gpqa_diamond.csv",), is_gated=True
        ),
        num_rows=198,
        licence="CC BY 4.0",
        summary="graduate-level multiple choice in physics, chemistry and biology",
        read=choice_problems,
    ),
    CatalogSet(
        name="ifeval",
        kind=Kind.BENCHMARK,
        stems=("ifeval_541", "ifeval"),
        hub=HubSource("google/IFEval", "966cd89545d6b6acfd7638bc708b98261ca58e84", ("ifeval_input_data.jsonl",)),
        num_rows=541,
        licence="Apache-2.0",
        summary="instructions that a program can check",
        grading=Grading.INSTRUCTIONS,
        read=instruction_problems,
    ),
    CatalogSet(
        name="bfcl",
        kind=Kind.BENCHMARK,
        stems=("bfcl_v3", "bfcl"),
        hub=HubSource(
            _BFCL,
            _BFCL_REVISION,
            (
                *(f"BFCL_v3_{category}.json" for category in SINGLE_TURN_CATEGORIES),
                *(
                    f"possible_answer/BFCL_v3_{category}.json"
                    for category in SINGLE_TURN_CATEGORIES
                    if category not in WITHOUT_GOLD
                ),
            ),
        ),
        num_rows=3641,
        licence="Apache-2.0",
        summary="function calling, BFCL v3, single turn",
        grading=Grading.CALLS,
        read=function_call_problems,
    ),
    CatalogSet(
        name="bfcl_multi_turn",
        kind=Kind.BENCHMARK,
        stems=("bfcl_multi_turn", "bfcl_v3"),
        hub=HubSource(
            _BFCL,
            _BFCL_REVISION,
            (
                *(f"BFCL_v3_{category}.json" for category in MULTI_TURN_CATEGORIES),
                *(f"possible_answer/BFCL_v3_{category}.json" for category in MULTI_TURN_CATEGORIES),
            ),
        ),
        num_rows=800,
        licence="Apache-2.0",
        summary="function calling, BFCL v3, several turns with simulated services",
        grading=Grading.MULTI_TURN_CALLS,
        read=multi_turn_call_problems,
    ),
    CatalogSet(
        name="arena_hard",
        kind=Kind.BENCHMARK,
        stems=("arena_hard_v01", "arena_hard"),
        hub=HubSource(
            "lmarena-ai/arena-hard-auto",
            "15f3746e21432264ce9b453999bde4f3c946d2e6",
            ("data/arena-hard-v0.1/question.jsonl",),
        ),
        num_rows=500,
        licence="Apache-2.0",
        summary="open requests for a judge, v0.1",
        grading=Grading.JUDGE,
        read=judged_problems,
    ),
    CatalogSet(
        name="gsm8k_train",
        kind=Kind.PROBLEMS,
        stems=("gsm8k_train",),
        hub=HubSource(
            _GSM8K,
            _GSM8K_REVISION,
            (_GSM8K_TRAIN,),
            {_GSM8K_TRAIN: "ea82612ea9582142387730c793eb67d3b12849002bc0b7fa6f8efafa7351419d"},
        ),
        num_rows=7473,
        licence="MIT",
        summary="grade school word problems, train split",
        read=answered_problems_of,
    ),
    CatalogSet(
        name="dapo_math",
        kind=Kind.PROBLEMS,
        stems=("dapo_math_14k_en", "dapo_math"),
        hub=HubSource(
            "open-r1/DAPO-Math-17k-Processed",
            "31dd309567e3da778038cc87d868b6097a3ccf68",
            ("en/train-*.parquet",),
        ),
        num_rows=14116,
        licence="Apache-2.0",
        summary="competition problems with integer answers, in English; curate before use",
        read=answered_problems_of,
    ),
    CatalogSet(
        name="deepscaler",
        kind=Kind.PROBLEMS,
        stems=("deepscaler_40k", "deepscaler"),
        hub=HubSource(
            "agentica-org/DeepScaleR-Preview-Dataset",
            "b6ae8c60f5c1f2b594e2140b91c49c9ad0949e29",
            ("deepscaler.json",),
        ),
        num_rows=40315,
        licence="MIT",
        summary="competition problems, 1984 to 2023; curate before use",
        read=answered_problems_of,
    ),
    CatalogSet(
        name="math_train",
        kind=Kind.PROBLEMS,
        stems=("math_train",),
        hub=HubSource(
            "DigitalLearningGmbH/MATH-lighteval",
            "0530c78699ea5e8eb5530600900e1f328b48acad",
            ("data/train-*.parquet",),
        ),
        num_rows=7500,
        licence="MIT",
        summary="MATH's train split",
        read=answered_problems_of,
    ),
    CatalogSet(
        name="limr",
        kind=Kind.PROBLEMS,
        stems=("limr_1389", "limr"),
        hub=HubSource("GAIR/LIMR", None, ("*.json", "*.jsonl", "*.parquet", "data/train-*.parquet")),
        num_rows=1389,
        licence="MIT",
        summary="MATH problems chosen for what they teach",
        read=answered_problems_of,
    ),
    CatalogSet(
        name="sft_mix",
        kind=Kind.CONVERSATIONS,
        stems=("nonreasoning_sft_train", "sft_mix"),
        hub=None,
        num_rows=26810,
        licence="mixed; the strictest row is CC BY-NC 4.0",
        summary="tool calls, instructions and chat: format only, no reasoning",
        grading=Grading.NOTHING,
    ),
)

CATALOG: dict[str, CatalogSet] = {entry.name: entry for entry in _SETS}


def find_set(name: str) -> CatalogSet:
    """The set of that name; a UserError that names the nearest one otherwise."""
    entry = CATALOG.get(name)
    if entry is None:
        near = difflib.get_close_matches(name.lower(), CATALOG, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? (`rstar2 data list` shows all)" if near else f"it has {', '.join(CATALOG)}"
        raise UserError(f"there is no data set named {name!r} in the catalog; {hint}")
    return entry
