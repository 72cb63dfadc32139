"""BFCL, single turn: the calls that a model makes are compared with those that are right, as `bfcl-eval` does it.

The comparison is reimplemented because `bfcl-eval` pins numpy 1 and four dozen packages; tests hold it to golden
verdicts of that package. Calls are JSON; their Java and JavaScript arguments are source text.
"""

from rstar2.evals.bfcl.judge import asked_messages, call_judge
from rstar2.evals.bfcl.match import is_answerable, matches

__all__ = ["asked_messages", "call_judge", "is_answerable", "matches"]
