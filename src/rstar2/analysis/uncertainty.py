"""How unsure the model was at each token: one number a token, and the tokens of a trace where it is highest."""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rstar2.records import Trace, Turn

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

HIGH_SHARE = 0.2
"""Of a trace's tokens, those that the report looks at."""


class Measure(StrEnum):
    """What the number is, in nats."""

    ENTROPY = "entropy"
    """Of the distribution that the token was drawn from."""
    SURPRISAL = "surprisal"
    """Minus the log-probability of the token that was drawn. Its mean is the entropy, a single value is not: it tells
    that an unlikely token came, not that many were likely. Only for runs that recorded no entropies."""


def turn_values(turn: Turn, measure: Measure) -> Floats | None:
    """One value a token; None if the turn has tokens and the run did not record this of them."""
    values = turn.entropies if measure is Measure.ENTROPY else turn.log_probs
    if len(values) != len(turn.token_ids):
        return None
    array = np.asarray(values, dtype=np.float64)
    return array if measure is Measure.ENTROPY else np.maximum(-array, 0.0)


def trace_values(trace: Trace, measure: Measure) -> tuple[Floats, ...] | None:
    """Turn by turn. None unless every token of the trace has its value: a share of a trace needs the whole of it."""
    turns = [turn_values(turn, measure) for turn in trace.turns]
    known = tuple(values for values in turns if values is not None)
    return known if len(known) == len(turns) and sum(map(len, known)) > 0 else None


def find_high(values: Floats) -> Bools:
    """The ⌈0.2 N⌉ highest of N values, the earlier of equal ones first; a value of 0 is never high."""
    num_high = -(-len(values) // round(1 / HIGH_SHARE))
    is_high: Bools = np.zeros(len(values), dtype=np.bool_)
    is_high[np.argsort(-values, kind="stable")[:num_high]] = True
    return is_high & (values > 0)
