"""The judge of IFEval. The score is prompt-level strict accuracy; the task's other three scores are details.

The instruction-level ones are shares of all instructions: a prompt is weighted by its number of instructions.
"""

from collections.abc import Sequence

from rstar2.data import InstructionTask
from rstar2.environments import Judgement
from rstar2.evals.ifeval.checks import follows
from rstar2.evals.ifeval.language import require_langdetect, require_nltk
from rstar2.records import Problem, Trace, Verdict
from rstar2.rollout.judge import Judge

DETAILS = ("prompt_strict", "instruction_strict", "prompt_loose", "instruction_loose")


def instruction_judge() -> Judge:
    require_langdetect()
    require_nltk()

    async def decide(problem: Problem, trace: Trace) -> Judgement:
        task = InstructionTask.of(problem)
        response = trace.final_text
        strict = followed(task, [response])
        loose = followed(task, loose_versions(response))
        shares = (all(strict), sum(strict) / len(strict), all(loose), sum(loose) / len(loose))
        details = dict(zip(DETAILS, map(float, shares), strict=True))
        return Judgement(Verdict.RIGHT if all(strict) else Verdict.WRONG, details=details)

    return Judge(decide, detail_weights)


def detail_weights(problem: Problem) -> dict[str, float]:
    num_instructions = float(len(InstructionTask.of(problem).instruction_ids))
    return {name: num_instructions if name.startswith("instruction") else 1.0 for name in DETAILS}


def followed(task: InstructionTask, versions: Sequence[str]) -> list[bool]:
    """For each instruction, whether any of the versions of the response follows it."""
    pairs = zip(task.instruction_ids, task.kwargs, strict=True)
    return [any(follows(name, version, arguments) for version in versions) for name, arguments in pairs]


def loose_versions(response: str) -> list[str]:
    """The response, and versions without its first line, its last, or both, each with and without stars, so that an
    introduction or bold type may pass."""
    lines = response.split("\n")
    cut = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(version.replace("*", "") for version in cut)]
