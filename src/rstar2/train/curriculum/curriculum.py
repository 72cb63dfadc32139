"""The sets of a recipe, loaded before anything runs, so that a mistake in the data costs no GPU time.

Invariant: no problem that is evaluated on is trained on, and no conversation of the warm-up asks it; what shares its
text with one is left out and counted.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from rstar2.config import Recipe, StageSection
from rstar2.data import Conversation, Grading, find_set, load_benchmark, load_conversations, load_problems
from rstar2.errors import UserError
from rstar2.records import Problem


@dataclass(frozen=True, slots=True)
class Curriculum:
    conversations: tuple[Conversation, ...]
    stages: tuple[tuple[Problem, ...], ...]
    """The problems of each stage, in the order of the recipe."""
    benchmarks: dict[str, tuple[Problem, ...]]
    num_held_out: int
    """Problems that were taken out of training because they are evaluated on."""
    num_held_out_conversations: int
    """Of the warm-up, for the same reason."""


def load_curriculum(recipe: Recipe) -> Curriculum:
    benchmarks = {name: _evaluated(name, recipe) for name in recipe.eval.benchmarks}
    held_out = {problem.problem for problems in benchmarks.values() for problem in problems}
    stages, num_held_out = [], 0
    for stage in recipe.stages:
        problems = _of_stage(stage, recipe)
        left = tuple(problem for problem in problems if problem.problem not in held_out)
        if not left:
            raise UserError(f"stages.{stage.name}: every one of its {len(problems)} problems is evaluated on as well")
        num_held_out += len(problems) - len(left)
        stages.append(left)
    found = _of_warm_up(recipe)
    conversations = tuple(conversation for conversation in found if not _asks(conversation, held_out))
    if found and not conversations:
        raise UserError(f"sft.data: every one of its {len(found)} conversations asks what is evaluated on")
    return Curriculum(conversations, tuple(stages), benchmarks, num_held_out, len(found) - len(conversations))


def _of_warm_up(recipe: Recipe) -> list[Conversation]:
    if recipe.sft is None:
        return []
    sets = (load_conversations(name, recipe.data[name], recipe.seed) for name in recipe.sft.data)
    return [conversation for conversations in sets for conversation in conversations]


def _asks(conversation: Conversation, questions: Container[str]) -> bool:
    return any(message["role"] == "user" and message["content"] in questions for message in conversation.messages)


def _evaluated(name: str, recipe: Recipe) -> tuple[Problem, ...]:
    if name in recipe.data:
        return load_problems(name, recipe.data[name], recipe.seed)
    if find_set(name).grading is not Grading.ANSWER:
        raise UserError(f"eval.benchmarks: {name} has no boxed answers to compare; measure it with `rstar2 eval`")
    return load_benchmark(name)


def _of_stage(stage: StageSection, recipe: Recipe) -> list[Problem]:
    problems = [problem for name in stage.data for problem in load_problems(name, recipe.data[name], recipe.seed)]
    _require_unique(problems, stage.name)
    return problems


def _require_unique(problems: Iterable[Problem], stage: str) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise UserError(
                f"stages.{stage}: two problems have the id {problem.id!r}; ids must be unique over its sets"
            )
        seen.add(problem.id)


def require_short_prompts(problems: Sequence[Problem], lengths: Sequence[int], max_prompt_tokens: int) -> None:
    """UserError names the first problem whose prompt is longer than a rollout may have it."""
    for problem, length in zip(problems, lengths, strict=True):
        if length > max_prompt_tokens:
            raise UserError(
                f"problem {problem.id!r} has a prompt of {length} tokens, more than rollout.max_prompt_tokens of "
                f"{max_prompt_tokens}: raise that, or remove the problem"
            )
