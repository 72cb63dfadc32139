"""The catalog of named data sets: where on the hub, at which commit, under what licence, and how they are read.

A commit pins the bytes; if the SHA-256 of a file is known as well, it is checked too. A set whose commit is not known
here (`revision` is None) is taken at the hub's commit of the first download, which is recorded and kept.
"""

import difflib
from dataclasses import replace

from rstar2.data.benchmark_sets import GSM8K_REPO, GSM8K_REVISION
from rstar2.data.catalog_set import CatalogSet, Grading, HubSource, SetKind
from rstar2.data.problem_rows import answered_problems_of
from rstar2.errors import UserError
from rstar2.extensions import BENCHMARKS

_GSM8K_TRAIN = "main/train-00000-of-00001.parquet"
_TRAINING_SETS = (
    CatalogSet(
        name="gsm8k_train",
        kind=SetKind.PROBLEMS,
        stems=("gsm8k_train",),
        hub=HubSource(
            GSM8K_REPO,
            GSM8K_REVISION,
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
        kind=SetKind.PROBLEMS,
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
        kind=SetKind.PROBLEMS,
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
        kind=SetKind.PROBLEMS,
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
        kind=SetKind.PROBLEMS,
        stems=("limr_1389", "limr"),
        hub=HubSource("GAIR/LIMR", None, ("*.json", "*.jsonl", "*.parquet", "data/train-*.parquet")),
        num_rows=1389,
        licence="MIT",
        summary="MATH problems chosen for what they teach",
        read=answered_problems_of,
    ),
    CatalogSet(
        name="sft_mix",
        kind=SetKind.CONVERSATIONS,
        stems=("nonreasoning_sft_train", "sft_mix"),
        hub=None,
        num_rows=26810,
        licence="mixed; the strictest row is CC BY-NC 4.0",
        summary="tool calls, instructions and chat: format only, no reasoning",
        grading=Grading.NOTHING,
    ),
)

CATALOG: dict[str, CatalogSet] = {
    **{
        name: replace(BENCHMARKS.load(name), name=name, summary=extension.summary)
        for name, extension in BENCHMARKS.items()
    },
    **{entry.name: entry for entry in _TRAINING_SETS},
}


def find_set(name: str) -> CatalogSet:
    """The set of that name; a UserError that names the nearest one otherwise."""
    entry = CATALOG.get(name)
    if entry is None:
        near = difflib.get_close_matches(name.lower(), CATALOG, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? (`rstar2 data list` shows all)" if near else f"it has {', '.join(CATALOG)}"
        raise UserError(f"there is no data set named {name!r} in the catalog; {hint}")
    return entry
