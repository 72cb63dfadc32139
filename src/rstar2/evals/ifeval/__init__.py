"""IFEval: instructions that a program can check, with the checks of `lm_eval`'s task.

The checks are reimplemented because `lm_eval` brings datasets and scikit-learn; tests hold them to golden verdicts of
that task.
"""

from rstar2.evals.ifeval.checks import CHECKS, follows
from rstar2.evals.ifeval.judge import instruction_judge

__all__ = ["CHECKS", "follows", "instruction_judge"]
