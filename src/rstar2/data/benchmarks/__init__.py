"""Benchmarks whose rows are more than a question and an answer: their conversion to problems, and the typed data that
their graders need. `Problem.metadata` holds these data as JSON; each class here writes it and reads it back.
"""

from rstar2.data.benchmarks.choices import choice_problems
from rstar2.data.benchmarks.function_calls import FunctionCallTask, function_call_problems
from rstar2.data.benchmarks.instructions import InstructionTask, instruction_problems
from rstar2.data.benchmarks.judged import judged_problems
from rstar2.data.benchmarks.multi_turn_calls import MultiTurnCallTask, multi_turn_call_problems

__all__ = [
    "FunctionCallTask",
    "InstructionTask",
    "MultiTurnCallTask",
    "choice_problems",
    "function_call_problems",
    "instruction_problems",
    "judged_problems",
    "multi_turn_call_problems",
]
