"""Programs judged by tests in the sandbox, in the row formats of MBPP, HumanEval, LiveCodeBench and a plain one.

Promise: hidden tests are never in the conversation, nor in any execution that holds code of the model.
"""

from rstar2.environments.code.environment import CODE, CodeEnvironment
from rstar2.environments.code.judge import CodeJudge, ProgramReport
from rstar2.environments.code.rows import read_task

__all__ = ["CODE", "CodeEnvironment", "CodeJudge", "ProgramReport", "read_task"]
