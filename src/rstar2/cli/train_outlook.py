"""What a recipe that was checked would train, in two lines."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rstar2.config import Recipe
    from rstar2.data import Curriculum

_DEVICES = {"auto": "its GPU if it has one", "cpu": "its CPU", "cuda": "its GPU"}


def outlook(recipe: "Recipe", curriculum: "Curriculum") -> tuple[str, str]:
    names = {name for stage in recipe.stages for name in stage.data if name in recipe.data}
    sources = dict.fromkeys(recipe.environment_of(name).source for name in sorted(names))
    where = f"on this machine ({_DEVICES[recipe.model.device]})"
    if recipe.cluster is not None:
        nodes, gpus = recipe.cluster.num_nodes, recipe.cluster.gpus_per_node
        where = f"on Ray, with --cluster ({_count(nodes, 'machine')}, {_count(gpus, 'GPU')} each)"
    task = f" in the environment {', '.join(sources)}" if sources else ""
    return f"no mistakes found: this would train {recipe.model.name}{task}, {where}", "; ".join(
        _parts(recipe, curriculum)
    )


def _parts(recipe: "Recipe", curriculum: "Curriculum") -> list[str]:
    parts = []
    if curriculum.conversations:
        parts.append(f"warm-up: {_count(len(curriculum.conversations), 'conversation')}")
    for stage, problems in zip(recipe.stages, curriculum.stages, strict=True):
        steps = f"{'at most ' if stage.target_reward is not None else ''}{_count(stage.steps, 'step')}"
        sets = ", ".join(stage.data)
        parts.append(f"stage {stage.name}: {steps}, {_count(len(problems), 'problem')} ({sets})")
    parts += [f"evaluation on {name}: {_count(len(found), 'problem')}" for name, found in curriculum.benchmarks.items()]
    return parts


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
