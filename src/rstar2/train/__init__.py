"""Learning: a supervised warm-up on format, then GRPO-RoC in stages, with checkpoints that a kill cannot hurt.

Promise: a recipe's mistakes show before anything runs; a run that was killed resumes from its last checkpoint, and
on a CPU ends with the same bits; every rollout, group and number of it is in the run directory.
May import: records, sandbox, engine, grading, algo, config, models, agent, rollout, data, evals. Needs the `train`
extra.
"""

from rstar2.train.learning.sft_examples import Example, conversation_texts, render_conversation
from rstar2.train.reporting.observer import Observer, Observers
from rstar2.train.run import Prepared, prepare_new, prepare_resumed, train

__all__ = [
    "Example",
    "Observer",
    "Observers",
    "Prepared",
    "conversation_texts",
    "prepare_new",
    "prepare_resumed",
    "render_conversation",
    "train",
]
