"""Everything that can be extended, one table for each kind: what a recipe may name, where its code is, what it does.

The recipe's choices, `--help` and the docs read these tables. To add an entry, write its code and add one line here.
CONTRIBUTING.md has the interface of each kind.

A recipe may also name code of its own as `package.module:name`, which no table has to know: a selection, an advantage,
a tree advantage, a fork policy, a kind of fork point, an environment, a tool, an engine or a scheduling policy. A loss
term cannot be named in this way, because every term of its table is applied. Nor can a benchmark: name a set of
`[data]` in its place.
"""

import difflib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rstar2.errors import UserError


@dataclass(frozen=True, slots=True)
class Extension:
    target: str
    """`package.module:name` of the code."""
    summary: str
    """What it does, in one sentence without a full stop."""


class Table(Mapping[str, Extension]):
    """The entries of one kind by name, in the order in which they are shown."""

    def __init__(self, kind: str, entries: Mapping[str, tuple[str, str]]) -> None:
        self.kind = kind
        """What an entry is called in messages."""
        self._entries = {name: Extension(*entry) for name, entry in entries.items()}

    def __getitem__(self, name: str) -> Extension:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, name: str) -> str:
        """The name itself. UserError unless it is in the table or names code as `package.module:name`."""
        if name not in self and ":" not in name:
            near = difflib.get_close_matches(name, self, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise UserError(
                f"must be the name of {article} {self.kind} ({', '.join(self)}) or package.module:name{hint}"
            )
        return name

    def load(self, name: str) -> Any:
        """The code of an entry, or of `package.module:name`."""
        self.check(name)
        module, _, attribute = (self[name].target if name in self else name).rpartition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            if name in self:
                raise
            is_missing = isinstance(error, ModuleNotFoundError)
            hint = ". Install it, or name the folder that holds it in PYTHONPATH" if is_missing else ""
            raise UserError(f"{self.kind} {name!r} cannot be loaded: {error}{hint}") from error

    def describe(self) -> str:
        """All entries as sentences: `paper: what it does. random: …`"""
        return " ".join(f"{name}: {entry.summary}." for name, entry in self.items())


SELECTIONS = Table(
    "selection",
    {
        "paper": (
            "rstar2.algo.resample:PAPER",
            "failures uniformly, successes with weight inverse to their penalty",
        ),
        "quotas": (
            "rstar2.algo.resample:QUOTAS",
            "as many of each class as paper keeps, both uniformly: the control without weights",
        ),
        "release": (
            "rstar2.algo.resample:RELEASE",
            "what the released code does, the lowest penalty of each class first",
        ),
        "random": (
            "rstar2.algo.resample:RANDOM",
            "uniformly, blind to reward: the control with equal sampling cost",
        ),
        "off": ("rstar2.algo.resample:OFF", "all are kept (plain GRPO), with oversample_factor 1"),
    },
)
ADVANTAGES = Table(
    "advantage",
    {
        "grpo": ("rstar2.algo.advantage:grpo", "reward minus the group's mean, divided by its standard deviation"),
        "dr-grpo": ("rstar2.algo.advantage:dr_grpo", "reward minus the group's mean, not divided"),
        "rloo": ("rstar2.algo.advantage:rloo", "reward minus the mean reward of the other rollouts"),
    },
)
TREE_ADVANTAGES = Table(
    "tree advantage",
    {
        "leaves": (
            "rstar2.algo.tree:over_leaves",
            "each leaf against all leaves, a shared turn with the mean of those below it",
        ),
        "siblings": (
            "rstar2.algo.tree:among_siblings",
            "each branch against the others of its fork, by the mean rewards below them",
        ),
    },
)
FORK_POLICIES = Table(
    "fork policy",
    {
        "uniform": ("rstar2.rollout.trees.policies:uniform", "the points with the fewest leaves first"),
        "random": ("rstar2.rollout.trees.policies:at_random", "any point, equally likely"),
        "uncertainty": (
            "rstar2.rollout.trees.policies:by_uncertainty",
            "where right and wrong leaves are most evenly mixed, by few leaves or many",
        ),
        "entropy": ("rstar2.rollout.trees.policies:by_entropy", "where the turn after the point was least certain"),
    },
)
FORK_POINTS = Table(
    "kind of fork point",
    {
        "results": ("rstar2.rollout.trees.points:RESULTS", "after every tool result"),
        "first-result": ("rstar2.rollout.trees.points:FIRST_RESULT", "after the first tool result of each rollout"),
        "errors": (
            "rstar2.rollout.trees.points:ERRORS",
            "after results of calls that failed through the model's fault",
        ),
        "random": ("rstar2.rollout.trees.points:RANDOM", "inside every turn, at a token drawn at random"),
        "entropy": (
            "rstar2.rollout.trees.points:ENTROPY",
            "inside every turn, at its token of highest entropy, which the engine must report",
        ),
    },
)
LOSS_TERMS = Table(
    "loss term",
    {
        "dual-clip": ("rstar2.algo.loss:dual_clip", "bounds the loss of negative advantages, at clip_dual"),
        "tis": ("rstar2.algo.loss:truncated_importance", "weighs tokens by engine mismatch, capped at tis_cap"),
        "kl": ("rstar2.algo.loss:reference_kl", "holds the policy to its start, with weight kl_coef"),
    },
)
"""Applied in this order after PPO's clip. A term whose setting is off changes nothing."""
TOOLS = Table(
    "tool",
    {
        "execute_python_code_with_standard_io": (
            "rstar2.agent.python_tools:PythonTool",
            "a fresh program with its stdin at each call, the report's",
        ),
        "jupyter_code": ("rstar2.agent.python_tools:JupyterTool", "a notebook that keeps its variables between calls"),
    },
)
ENVIRONMENTS = Table(
    "environment",
    {
        "math": ("rstar2.environments.math:MATH", "a question with a gold answer, judged by computer algebra"),
        "code": ("rstar2.environments.code:CODE", "programs judged by tests in the sandbox"),
        "verifiers": (
            "rstar2.environments.verifiers:VERIFIERS",
            "verifiers:NAME is a taskset of that package",
        ),
        "harness": (
            "rstar2.harness:HARNESS",
            "a program that asks the model itself, by an OpenAI base URL",
        ),
        "openenv": ("rstar2.environments.openenv:OPENENV", "openenv:URL is a running OpenEnv server"),
    },
)
"""Each entry is an `EnvironmentSource`. What follows the first colon of a source is the source's own."""
ENGINES = Table(
    "engine",
    {
        "embedded": ("rstar2.rollout.engines:open_embedded", "our own, on a CPU or a GPU"),
        "vllm": ("rstar2.rollout.engines:open_vllm", "vLLM, in this process or at base_url"),
        "openai": ("rstar2.rollout.engines:open_openai", "any OpenAI-compatible server at base_url"),
        "scripted": ("rstar2.rollout.engines:open_scripted", "the replies of a file"),
    },
)
"""The engines; only the first two can train."""
POLICIES = Table(
    "scheduling policy",
    {
        "static": ("rstar2.rollout.policies.static:Static", "an even split up front, turns wait for the longest"),
        "round-robin": ("rstar2.rollout.policies.sticky:RoundRobin", "to the engines in turn"),
        "least-requests": ("rstar2.rollout.policies.sticky:LeastRequests", "to the engine with the fewest requests"),
        "worst-case": ("rstar2.rollout.policies.worst_case:WorstCase", "reserves the longest possible response"),
        "kv-aware": ("rstar2.rollout.policies.kv_aware:KvAware", "by expected KV need, moves rollouts where it pays"),
    },
)
BENCHMARKS = Table(
    "benchmark",
    {
        "aime24": ("rstar2.data.benchmark_sets:AIME24", "AIME 2024, both papers"),
        "aime25": ("rstar2.data.benchmark_sets:AIME25", "AIME 2025, both papers"),
        "amc23": ("rstar2.data.benchmark_sets:AMC23", "AMC 12 of 2023, problems with integer answers"),
        "gsm8k": ("rstar2.data.benchmark_sets:GSM8K", "grade school word problems, test split"),
        "hmmt_feb25": ("rstar2.data.benchmark_sets:HMMT_FEB25", "HMMT February 2025"),
        "math500": ("rstar2.data.benchmark_sets:MATH500", "500 problems of MATH's test split"),
        "gpqa_diamond": (
            "rstar2.data.benchmark_sets:GPQA_DIAMOND",
            "graduate-level multiple choice in physics, chemistry and biology",
        ),
        "ifeval": ("rstar2.data.benchmark_sets:IFEVAL", "instructions that a program can check"),
        "bfcl": ("rstar2.data.benchmark_sets:BFCL", "function calling, BFCL v3, single turn"),
        "bfcl_multi_turn": (
            "rstar2.data.benchmark_sets:BFCL_MULTI_TURN",
            "function calling, BFCL v3, several turns with simulated services",
        ),
        "arena_hard": ("rstar2.data.benchmark_sets:ARENA_HARD", "open requests for a judge, v0.1"),
    },
)
"""A recipe names its own problems in [data], as file:PATH: they need no entry."""
SFT_SOURCES = Table(
    "source of conversations",
    {
        "toolace": ("rstar2.data.build.toolace:TOOLACE", "function calls over several turns"),
        "apigen_mt": ("rstar2.data.build.apigen_mt:APIGEN_MT", "function calls with a simulated customer and a policy"),
        "glaive": ("rstar2.data.build.glaive:GLAIVE", "function calls, and requests that need or have no function"),
        "magicoder": ("rstar2.data.build.magicoder:MAGICODER", "Python programs, rewritten as calls of our tool"),
        "tulu": ("rstar2.data.build.tulu:TULU", "instructions with checkable constraints"),
        "nemotron_chat": ("rstar2.data.build.nemotron_chat:NEMOTRON_CHAT", "chat"),
    },
)
"""What `rstar2 data build sft` makes the warm-up's files of. Each entry is a `BuildSource`."""
RL_SOURCES = Table(
    "source of problems",
    {
        "dapo": ("rstar2.data.build.problems:DAPO", "competition problems with integer answers"),
        "open_math_reasoning": (
            "rstar2.data.build.problems:OPEN_MATH_REASONING",
            "problems of the AoPS forums, one row for each generated solution",
        ),
        "project_euler": ("rstar2.data.build.problems:PROJECT_EULER", "problems that need a program"),
    },
)
"""What `rstar2 data build rl` makes the problems of. Each entry is a `BuildSource`."""
