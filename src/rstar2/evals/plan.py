"""The plan of an evaluation. It is stored in the run's `recipe.toml`, so that the run can be resumed and regraded."""

import json
import random
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rstar2.data import FunctionCallTask, Grading, MultiTurnCallTask, grading_of, load_any_problems
from rstar2.errors import UserError
from rstar2.evals.bfcl import is_answerable
from rstar2.evals.settings import REPORT, EvalSettings
from rstar2.grading import AnswerPlace
from rstar2.records import Problem
from rstar2.rollout.trees import TreeSettings


@dataclass(frozen=True, slots=True)
class Benchmark:
    name: str
    problems: tuple[Problem, ...]
    grading: Grading
    num_left_out: int = 0
    """Problems left out because no response could solve them by the benchmark's own rules."""


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """`benchmarks` are names of the catalog, `procedural:TASK`, or files."""

    benchmarks: tuple[str, ...]
    settings: EvalSettings = REPORT
    seed: int = 0
    num_generated: int = 100
    """How many problems a procedural benchmark generates."""
    max_problems: int | None = None
    """The most problems of each benchmark, drawn with the seed. None means all."""
    answer_place: AnswerPlace = AnswerPlace.ANSWER_BLOCK
    data_dir: str | None = None

    def deviations(self, benchmarks: Iterable[Benchmark]) -> tuple[str, ...]:
        """How this evaluation differs from the report's, as clauses for people; empty if it does not."""
        found = list(self.settings.deviations)
        if self.max_problems is not None:
            found.append(f"at most {self.max_problems:,} problems of a benchmark")
        if self.answer_place is AnswerPlace.ANYWHERE:
            found.append("a box anywhere in the response counts as the answer")
        for benchmark in benchmarks:
            if benchmark.num_left_out:
                found.append(
                    f"{benchmark.num_left_out} problems of {benchmark.name} left out, whose gold cannot be met"
                )
        return tuple(found)

    def within(self, num_tokens: int) -> "EvalPlan":
        """The same plan with responses of at most `num_tokens` tokens."""
        if self.settings.max_response_tokens <= num_tokens:
            return self
        return replace(self, settings=replace(self.settings, max_response_tokens=num_tokens))

    def load(self, own: Mapping[str, tuple[Problem, ...]] | None = None) -> list[Benchmark]:
        """Every benchmark with its problems; a UserError says how to get one that is not here. `own` are the caller's
        own sets, by the names that `benchmarks` has for them."""
        return [self._load(name, (own or {}).get(name)) for name in self.benchmarks]

    def _load(self, name: str, own: tuple[Problem, ...] | None) -> Benchmark:
        folder = Path(self.data_dir) if self.data_dir else None
        problems = own or load_any_problems(name, folder, num_generated=self.num_generated, seed=self.seed)
        grading, num_all = _own_grading(own) if own else grading_of(name), len(problems)
        if self.settings.tree is not None and grading not in (Grading.ANSWER, Grading.ENVIRONMENT):
            raise UserError(
                f"{name} is asked without the agent and its tools, so it has no trees: leave it or --tree out"
            )
        if grading is Grading.CALLS:
            problems = tuple(problem for problem in problems if is_answerable(FunctionCallTask.of(problem)))
        elif grading is Grading.MULTI_TURN_CALLS:
            problems = tuple(problem for problem in problems if MultiTurnCallTask.of(problem).is_answerable)
        num_left_out = num_all - len(problems)
        if self.max_problems is not None and self.max_problems < len(problems):
            chosen = random.Random(f"{self.seed}/eval/{name}").sample(range(len(problems)), self.max_problems)
            problems = tuple(problems[index] for index in sorted(chosen))
        if len({problem.id for problem in problems}) < len(problems):
            raise UserError(f"{name} has two problems with the same id; give each row its own id")
        return Benchmark(name, problems, grading, num_left_out)

    def to_toml(self, sections: Mapping[str, Mapping[str, Any]]) -> str:
        """The plan as TOML, followed by `sections`, which hold the run's other settings."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "settings"}
        protocol = asdict(self.settings)
        tree = protocol.pop("tree")
        trees = {} if tree is None else {"protocol.tree": tree}
        tables = {"evaluation": own, "protocol": protocol, **trees, **sections}
        return "\n".join(f"[{name}]\n{_lines(values)}" for name, values in tables.items())


def _own_grading(problems: tuple[Problem, ...]) -> Grading:
    """The grading of the caller's own problems: only environments other than mathematics have rows."""
    return Grading.ENVIRONMENT if any(problem.row for problem in problems) else Grading.ANSWER


def read_plan(toml: str) -> tuple[EvalPlan, dict[str, dict[str, Any]]]:
    """The plan and the sections that `to_toml` wrote."""
    try:
        sections = tomllib.loads(toml)
        own = sections.pop("evaluation")
        protocol = sections.pop("protocol")
        tree = protocol.pop("tree", None)
        settings = EvalSettings(**protocol, tree=None if tree is None else TreeSettings(**tree))
        place = AnswerPlace(own.pop("answer_place"))
        plan = EvalPlan(tuple(own.pop("benchmarks")), settings, answer_place=place, **own)
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"this run's recipe.toml is not one of an evaluation: {error}") from None
    return plan, sections


def _lines(values: Mapping[str, Any]) -> str:
    """JSON's strings, numbers, lists and booleans are valid TOML. None is left out."""
    kept = ((name, value) for name, value in values.items() if value is not None)
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in kept)
