"""IFEval: instructions that a program can check, with the checks of `lm_eval`'s task.

Written here because `lm_eval` brings datasets, scikit-learn and a tokenizer that is downloaded when it is imported.
Where that one counts sentences and words with nltk's trained models, this one counts with rules (`words`).
"""

from rstar2.evals.ifeval.checks import CHECKS, follows
from rstar2.evals.ifeval.judge import instruction_judge

__all__ = ["CHECKS", "follows", "instruction_judge"]
