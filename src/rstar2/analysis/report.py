"""The analysis as one JSON document. Its fields are those of `Analysis`, with shares added beside the counts.

Invariant: every text in the document can be written as UTF-8, whatever a model wrote.
"""

from dataclasses import asdict
from typing import Any

from rstar2.analysis.after_error import Reaction
from rstar2.analysis.analyze import Analysis
from rstar2.analysis.entropy import QUANTILES, ValueSummary
from rstar2.analysis.over_training import CallCount

SCHEMA_VERSION = 1


def as_json(analysis: Analysis) -> dict[str, Any]:
    document, entropy, errors = asdict(analysis), analysis.entropy, analysis.after_errors
    document["after_errors"]["shares"] = {reaction: errors.share(reaction) for reaction in Reaction}
    document["calls"] = _calls(analysis.calls)
    document["over_training"] = [
        {"step": row.step, "right": _calls(row.right), "wrong": _calls(row.wrong), "num_unscored": row.num_unscored}
        for row in analysis.over_training
    ]
    if entropy is not None:
        document["entropy"] = {
            "quantiles_at": QUANTILES,
            "all_tokens": _values(entropy.all_tokens),
            "by_class": {found: _values(summary) for found, summary in entropy.by_class.items()},
        }
    return {"schema_version": SCHEMA_VERSION, **_writable(document)}


def _values(summary: ValueSummary) -> dict[str, Any]:
    return {**asdict(summary), "high_share": summary.high_share}


def _calls(count: CallCount) -> dict[str, Any]:
    return {**asdict(count), "error_share": count.error_share}


def _writable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_writable(item) for item in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
