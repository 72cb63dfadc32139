"""Tries an environment without a model: with its gold answers, an empty answer, and calls of every tool.

A scripted policy plays the episodes through the agent loop, as a model would.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rstar2.agent import Agent, AgentLimits, ChatFormat, ToolSchema
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import Policy, ScriptedEngine, ScriptedPrompt
from rstar2.environments import Environment
from rstar2.environments.begin import observed_start
from rstar2.environments.protocol import plays_itself
from rstar2.environments.wrapped import innermost
from rstar2.errors import InfrastructureError
from rstar2.records import Outcome, Problem, Trace, Verdict
from rstar2.rollout.judge import judge_of, judged

EMPTY_TURN = "</reason>\n"
"""A turn that says nothing."""


@dataclass(frozen=True, slots=True)
class Played:
    """One episode of a scripted policy."""

    problem: str
    policy: str
    """`gold`, `empty` or `tools`."""
    reward: float | None
    verdict: str | None
    statuses: tuple[str, ...]
    """How each tool call ended."""
    seconds: Mapping[str, float]
    """Seconds that the environment took for each part of the episode."""
    fault: str = ""

    @property
    def complaint(self) -> str:
        """What is wrong with the environment; empty if nothing is."""
        if self.fault:
            return self.fault
        if self.policy == "gold" and not (self.verdict == Verdict.RIGHT or (self.reward or 0.0) >= 1):
            return f"the gold answer scores {self.reward:g}, not 1"
        if self.policy == "empty" and (self.reward or 0.0) > 0:
            return f"an empty answer scores {self.reward:g}, not 0"
        return ""


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    num_problems: int
    tools: tuple[str, ...]
    num_gold: int
    """Problems whose gold answer is known, among those that were played."""
    played: tuple[Played, ...]

    @property
    def complaints(self) -> dict[str, list[str]]:
        """The problems of each complaint."""
        found: dict[str, list[str]] = {}
        for each in self.played:
            if each.complaint:
                found.setdefault(f"{each.policy}: {each.complaint}", []).append(each.problem)
        return found

    def median_s(self, part: str) -> float:
        return median([each.seconds[part] for each in self.played if part in each.seconds] or [0.0])

    def longest_s(self, part: str) -> float:
        return max((each.seconds[part] for each in self.played if part in each.seconds), default=0.0)


async def validate_environment(
    environment: Environment,
    problems: Sequence[Problem],
    limits: AgentLimits,
    num_played: int = 10,
    on_played: Callable[[], None] = lambda: None,
) -> EnvironmentReport:
    """Every problem's opening is made; `num_played` of them are played by each policy. UserError if the environment
    says that the user made a mistake."""
    openings = [environment.opening(problem) for problem in problems]
    played: list[Played] = []
    num_gold = 0
    for problem, opening in zip(problems[:num_played], openings, strict=False):
        solution = environment.solution(problem)
        num_gold += solution is not None
        policies = {"empty": _saying([]), "tools": _calling(opening.tools)}
        if solution is not None:
            policies["gold"] = _saying(solution)
        for name, policy in policies.items():
            played.append(await _play(environment, problem, name, policy, limits))
            on_played()
    tools = dict.fromkeys(tool.name for opening in openings for tool in opening.tools)
    return EnvironmentReport(len(problems), tuple(tools), num_gold, tuple(played))


async def _play(environment: Environment, problem: Problem, name: str, policy: Policy, limits: AgentLimits) -> Played:
    chat = ChatFormat.of(PlainTextTokenizer())
    agent = Agent(ScriptedEngine(policy, chat.tokenizer, chat.end_of_turn_id), chat, limits)
    clock = _Clock()
    opening = environment.opening(problem)
    trace: Trace | None = None
    fault = ""
    try:
        async with clock.timed("begin"):
            episode = await environment.begin(problem)
        try:
            if plays_itself(player := innermost(episode)):
                trace = await player.play(agent, problem.id)
            else:
                start = observed_start(chat, opening, episode)
                trace = await agent.rollout(problem, episode.tools, start=start, world=episode)
            async with clock.timed("reward"):
                trace = await judged(judge_of(environment, episode, chat.end_of_turn), problem, trace)
        finally:
            async with clock.timed("close"):
                await episode.close()
    except InfrastructureError as error:
        fault = str(error)
    if trace is not None:
        if trace.results:
            clock.seconds["tools of a turn"] = max(turn.tool_s for turn in trace.turns)
        if trace.outcome is Outcome.INFRASTRUCTURE_FAULT or trace.verdict is Verdict.UNDECIDED:
            fault = fault or trace.note
    return Played(
        problem.id,
        name,
        None if trace is None else trace.reward,
        None if trace is None or trace.verdict is None else trace.verdict.value,
        () if trace is None else tuple(result.status.value for result in trace.results),
        clock.seconds,
        fault,
    )


@dataclass(slots=True)
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)

    @asynccontextmanager
    async def timed(self, part: str) -> AsyncIterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = time.monotonic() - started


def _saying(turns: Sequence[str]) -> Policy:
    """A policy that says one text after the other, then nothing."""

    def policy(prompt: ScriptedPrompt) -> str:
        return turns[prompt.turn] if prompt.turn < len(turns) else EMPTY_TURN

    return policy


def _calling(tools: Sequence[ToolSchema]) -> Policy:
    """A policy that calls all tools in one turn, with arguments that their schemas allow, then says nothing."""
    calls = [
        f"<tool_call>\n{json.dumps({'name': tool.name, 'arguments': example_of(tool.parameters)})}\n</tool_call>"
        for tool in tools
    ]
    return _saying(["</reason>\n" + "\n".join(calls)] if calls else [])


def example_of(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Any:
    """A value that the schema allows, as far as that can be seen without solving it."""
    root = schema if root is None else root
    if (reference := str(schema.get("$ref", ""))).startswith("#/$defs/"):
        return example_of(root.get("$defs", {}).get(reference.rpartition("/")[2], {}), root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example_of(schema[key][0], root)
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    match kinds if isinstance(kinds, str) else kinds[0]:
        case "object":
            properties = schema.get("properties", {})
            return {name: example_of(properties.get(name, {}), root) for name in schema.get("required", ())}
        case "array":
            return [example_of(schema.get("items", {}), root)] * int(schema.get("minItems", 0))
        case "integer" | "number":
            return schema.get("minimum", schema.get("maximum", 1))
        case "boolean":
            return True
        case "null":
            return None
    return "x" * max(1, int(schema.get("minLength", 1)))
