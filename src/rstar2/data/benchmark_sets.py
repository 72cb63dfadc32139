"""The benchmarks that recipes and `rstar2 eval` know by name, one value each; `extensions.BENCHMARKS` lists them."""

from rstar2.data.benchmarks import (
    choice_problems,
    function_call_problems,
    instruction_problems,
    judged_problems,
    multi_turn_call_problems,
)
from rstar2.data.benchmarks.function_calls import SINGLE_TURN_CATEGORIES, WITHOUT_GOLD
from rstar2.data.benchmarks.multi_turn_calls import MULTI_TURN_CATEGORIES
from rstar2.data.catalog_set import CatalogSet, Grading, HubSource, SetKind

GSM8K_REPO = "openai/gsm8k"
GSM8K_REVISION = "740312add88f781978c0658806c59bc2815b9866"
_GSM8K_TEST = "main/test-00000-of-00001.parquet"
_BFCL = "gorilla-llm/Berkeley-Function-Calling-Leaderboard"
_BFCL_REVISION = "61fc0608cfd831fcfbbaa676ebdfef0ed963eeda"
_COMPETITION_LICENCE = "problems (c) MAA"

AIME24 = CatalogSet(
    kind=SetKind.BENCHMARK,
    stems=("aime24",),
    hub=HubSource("HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", ("data/train-*.parquet",)),
    num_rows=30,
    licence=_COMPETITION_LICENCE,
)

AIME25 = CatalogSet(
    kind=SetKind.BENCHMARK,
    stems=("aime25",),
    hub=HubSource("math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", ("test.jsonl",)),
    num_rows=30,
    licence=_COMPETITION_LICENCE,
)

AMC23 = CatalogSet(
    kind=SetKind.BENCHMARK,
    stems=("amc23",),
    hub=HubSource(
        "math-ai/amc23",
        "80815d37005feb82cd7f8fbc6901d5d3eff43057",
        ("data/test-*.parquet", "test*.parquet", "test*.jsonl"),
    ),
    num_rows=40,
    licence=_COMPETITION_LICENCE,
)

GSM8K = CatalogSet(
    kind=SetKind.BENCHMARK,
    stems=("gsm8k_test", "gsm8k"),
    hub=HubSource(
        GSM8K_REPO,
        GSM8K_REVISION,
        (_GSM8K_TEST,),
        {_GSM8K_TEST: "ee7b8da9e381df27b9e3f7758a159ab2bdaa4dbaa910546cbbc47e0cb44e4f59"},
    ),
    num_rows=1319,
    licence="MIT",
)

HMMT_FEB25 = CatalogSet(
    kind=SetKind.BENCHMARK,
    stems=("hmmt_feb_2025", "hmmt_feb25"),
    hub=HubSource("MathArena/hmmt_feb_2025", "6fdc4277120810ff75aa22d2d5489b91f7a262a1", ("data/train-*.parquet",)),
    num_rows=30,
    licence="CC BY-NC-SA 4.0; problems (c) HMMT",
)

MATH500 = CatalogSet(
    kind=SetKind.BENCHMARK,
    stems=("math500",),
    hub=HubSource(
        "HuggingFaceH4/MATH-500",
        "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        ("test.jsonl",),
        {"test.jsonl": "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"},
    ),
    num_rows=500,
    licence="MIT",
)

GPQA_DIAMOND = CatalogSet(
    kind=SetKind.BENCHMARK,
    stems=("gpqa_diamond",),
    hub=HubSource("Idavidrein/gpqa", "633f5ee89ab8ad4522a9f850766b73f62147ffdd", ("gpqa_diamond.csv",), is_gated=True),
    num_rows=198,
    licence="CC BY 4.0",
    read=choice_problems,
)

IFEVAL = CatalogSet(
    kind=SetKind.BENCHMARK,
    stems=("ifeval_541", "ifeval"),
    hub=HubSource("google/IFEval", "966cd89545d6b6acfd7638bc708b98261ca58e84", ("ifeval_input_data.jsonl",)),
    num_rows=541,
    licence="Apache-2.0",
    grading=Grading.INSTRUCTIONS,
    read=instruction_problems,
)

BFCL = CatalogSet(
    kind=SetKind.BENCHMARK,
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
    grading=Grading.CALLS,
    read=function_call_problems,
)

BFCL_MULTI_TURN = CatalogSet(
    kind=SetKind.BENCHMARK,
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
    grading=Grading.MULTI_TURN_CALLS,
    read=multi_turn_call_problems,
)

ARENA_HARD = CatalogSet(
    kind=SetKind.BENCHMARK,
    stems=("arena_hard_v01", "arena_hard"),
    hub=HubSource(
        "lmarena-ai/arena-hard-auto",
        "15f3746e21432264ce9b453999bde4f3c946d2e6",
        ("data/arena-hard-v0.1/question.jsonl",),
    ),
    num_rows=500,
    licence="Apache-2.0",
    grading=Grading.JUDGE,
    read=judged_problems,
)
