"""Loads the sets of a recipe before anything runs, so that a mistake in the data costs no GPU time.

Invariant: no problem that is evaluated on is trained on, and no conversation of the warm-up asks it; problems and
conversations with the text of one are left out and counted.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from rstar2.config import Recipe, RecipeReading
from rstar2.data.by_name import holds_conversations
from rstar2.data.catalog import find_set
from rstar2.data.catalog_set import Grading
from rstar2.data.cells import compact_json
from rstar2.data.conversation import Conversation
from rstar2.data.load import ANY_ROWS, MATH, load_benchmark, load_conversations, load_problems
from rstar2.data.mistakes import Mistakes
from rstar2.data.problem_rows import ID_COLUMNS
from rstar2.data.row_checker import RowChecker
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
    """Conversations that were taken out of the warm-up for the same reason."""


def load_curriculum(recipe: Recipe, check: Callable[[str, Sequence[Problem]], None] = lambda *_: None) -> Curriculum:
    """Loads all sets that the recipe uses. UserError names every mistake of every set. `check` gets the name and the
    problems of each set, and may raise UserError as well."""
    mistakes = Mistakes()
    with mistakes.noted():
        if not recipe.trains:
            raise UserError("the recipe has neither [sft] nor [[stages]], so there is nothing to train")
    sets: dict[str, tuple[Problem, ...]] = {}
    for name in dict.fromkeys([*recipe.eval.benchmarks, *(name for stage in recipe.stages for name in stage.data)]):
        with mistakes.noted():
            sets[name] = _problems(name, recipe)
            check(name, sets[name])
    found: list[Conversation] = []
    for name in recipe.sft.data if recipe.sft is not None else ():
        with mistakes.noted():
            found += load_conversations(name, recipe.data[name], recipe.seed, recipe)
    mistakes.raise_any()

    benchmarks = {name: sets[name] for name in recipe.eval.benchmarks}
    held_out = {_key(problem) for problems in benchmarks.values() for problem in problems}
    stages, num_held_out = [], 0
    for stage in recipe.stages:
        problems = [problem for name in stage.data for problem in sets[name]]
        left = [[problem for problem in sets[name] if _key(problem) not in held_out] for name in stage.data]
        shares = [recipe.data[name].share for name in stage.data]
        with mistakes.noted():
            _require_unique(problems, stage.name)
        with mistakes.noted():
            if not any(left):
                raise UserError(
                    f"stages.{stage.name}: every one of its {len(problems)} problems is evaluated on as well"
                )
        num_held_out += len(problems) - sum(map(len, left))
        stages.append(mixed(left, shares))
    conversations = tuple(conversation for conversation in found if not _asks(conversation, held_out))
    with mistakes.noted():
        if found and not conversations:
            raise UserError(f"sft.data: every one of its {len(found)} conversations asks a question of a benchmark")
    mistakes.raise_any()
    return Curriculum(conversations, tuple(stages), benchmarks, num_held_out, len(found) - len(conversations))


@dataclass(frozen=True, slots=True)
class DataReading:
    curriculum: Curriculum | None
    """The recipe's data; None if there are mistakes."""
    mistakes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Notes on what was not checked."""


def examine_data(reading: RecipeReading) -> DataReading:
    """Finds everything that is wrong with the sets of a recipe, even if the recipe itself cannot be used: then each
    well-declared set is read alone. Environments are asked whether they can use each row."""
    mistakes = Mistakes()
    if reading.recipe is not None:
        curriculum, checker = None, RowChecker(reading.recipe)
        with mistakes.noted():
            curriculum = load_curriculum(reading.recipe, checker.check)
        return DataReading(curriculum, mistakes.sentences, tuple(checker.notes))
    for name, spec in reading.sets.items():
        if spec.kind == "procedural" and spec.num_problems is None:
            continue  # one of the recipe's own mistakes
        if spec.kind == "environment":
            continue  # the environment is part of the recipe
        with mistakes.noted():
            if name in reading.warm_up_sets or holds_conversations(spec.source):
                load_conversations(name, spec, seed=0)
            else:
                is_math = reading.asks_mathematics and spec.environment is None
                load_problems(name, spec, 0, MATH if is_math else ANY_ROWS)
    return DataReading(None, mistakes.sentences)


def _problems(name: str, recipe: Recipe) -> tuple[Problem, ...]:
    """The problems of a set of `[data]`, or of a benchmark."""
    if name in recipe.data:
        return load_problems(name, recipe.data[name], recipe.seed, recipe.environment_of(name))
    if find_set(name).grading is not Grading.ANSWER:
        raise UserError(f"eval.benchmarks: {name} has no boxed answers to compare; measure it with `rstar2 eval`")
    return load_benchmark(name)


def mixed(sets: Sequence[Sequence[Problem]], shares: Sequence[float | None]) -> tuple[Problem, ...]:
    """All problems of the sets. With shares, the total number stays the same, and each set gets its share of it:
    problems of a set that is too small are repeated, and the last ones of a set that is too large are left out."""
    weights = [share for problems, share in zip(sets, shares, strict=True) if share is not None and problems]
    if not weights:
        return tuple(problem for problems in sets for problem in problems)
    num_all, sum_of_shares = sum(map(len, sets)), sum(weights)
    counts = [round(num_all * (share or 0.0) / sum_of_shares) for share in shares]
    return tuple(
        problem
        for problems, count in zip(sets, counts, strict=True)
        if problems
        for problem in islice(cycle(problems), max(1, count))
    )


def _key(problem: Problem) -> str:
    """The key by which two problems are the same: the question, or the row if an environment reads more than that."""
    row = {column: value for column, value in problem.row.items() if column not in ID_COLUMNS}
    return compact_json(row) if row else problem.problem


def _asks(conversation: Conversation, questions: Container[str]) -> bool:
    return any(message["role"] == "user" and message["content"] in questions for message in conversation.messages)


def _require_unique(problems: Iterable[Problem], stage: str) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise UserError(
                f"stages.{stage}: two problems have the id {problem.id!r}; ids must be unique over its sets"
            )
        seen.add(problem.id)


def require_short_prompts(problems: Sequence[Problem], lengths: Sequence[int], max_prompt_tokens: int) -> None:
    """Raises UserError for the first problem whose prompt is longer than `max_prompt_tokens`."""
    for problem, length in zip(problems, lengths, strict=True):
        if length > max_prompt_tokens:
            raise UserError(
                f"problem {problem.id!r} has a prompt of {length} tokens, more than rollout.max_prompt_tokens of "
                f"{max_prompt_tokens}: raise that, or remove the problem"
            )
