"""IFEval: instructions that a program can check, with the checks of `lm_eval`'s task.

Written here because `lm_eval` brings datasets and scikit-learn; golden verdicts of that task hold it to the same rules.
"""

from rstar2.evals.ifeval.checks import CHECKS, follows
from rstar2.evals.ifeval.judge import instruction_judge

__all__ = ["CHECKS", "follows", "instruction_judge"]
