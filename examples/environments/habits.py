"""What the warm-ups of these examples choose: something that depends on the question, and is right by chance only.

A model that has only seen answers drawn at random has learnt not to look at the question, and reinforcement learning
takes long to undo that. A wrong habit teaches to look, and gives nothing away.
"""

import random
from collections.abc import Iterable


def habitual(rng: random.Random, choices: Iterable[str], right: str) -> str:
    """One of at least three choices: the right one as often as chance has it, otherwise mostly the one after it."""
    choices = list(choices)
    at, chance = choices.index(right), 1 / len(choices)
    following, *others = choices[at + 1 :] + choices[:at]
    return rng.choices([right, following, rng.choice(others)], [chance, 0.6, 0.4 - chance])[0]
