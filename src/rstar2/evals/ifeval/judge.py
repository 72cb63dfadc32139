"""The judge of IFEval. The score is prompt-level strict accuracy; the other three of the task stand beside it."""

from collections.abc import Sequence

from rstar2.data import InstructionTask
from rstar2.evals.final_text import final_text
from rstar2.evals.ifeval.checks import follows
from rstar2.evals.ifeval.language import require_langdetect
from rstar2.evals.judgement import Judge, Judgement
from rstar2.records import Problem, Trace, Verdict


def instruction_judge() -> Judge:
    require_langdetect()

    async def judge(problem: Problem, trace: Trace) -> Judgement:
        task = InstructionTask.of(problem)
        response = final_text(trace)
        strict = followed(task, [response])
        loose = followed(task, loose_versions(response))
        details = {
            "prompt_strict": float(all(strict)),
            "instruction_strict": sum(strict) / len(strict),
            "prompt_loose": float(all(loose)),
            "instruction_loose": sum(loose) / len(loose),
        }
        return Judgement(Verdict.RIGHT if all(strict) else Verdict.WRONG, details=details)

    return judge


def followed(task: InstructionTask, versions: Sequence[str]) -> list[bool]:
    """For each instruction, whether any of the versions of the response follows it."""
    pairs = zip(task.instruction_ids, task.kwargs, strict=True)
    return [any(follows(name, version, arguments) for version in versions) for name, arguments in pairs]


def loose_versions(response: str) -> list[str]:
    """Without its first line, its last, both; each with and without stars: an introduction or bold type may pass."""
    lines = response.split("\n")
    cut = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(version.replace("*", "") for version in cut)]
