"""One episode of an environment with a scripted model, through the agent's own loop, as a roller would play it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rstar2.agent import Agent, AgentLimits, ChatFormat
from rstar2.config import EnvironmentSection
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import Policy, ScriptedEngine
from rstar2.environments import Environment, Judgement
from rstar2.environments.begin import observed_start
from rstar2.records import Outcome, Problem, Trace

CHAT = ChatFormat.of(PlainTextTokenizer())
SERVICES: Any = None
"""The sources that are tested with this use no service of the run."""


@dataclass(frozen=True, slots=True)
class Played:
    trace: Trace
    judgement: Judgement | None
    """None where a roller would not ask for one: after an infrastructure fault."""


def section(source: str, **fields: Any) -> EnvironmentSection:
    return EnvironmentSection(source=source, **fields)


def problem_of(row: Mapping[str, Any], name: str = "p1") -> Problem:
    return Problem(name, "", "", row=dict(row))


async def play(
    environment: Environment, problem: Problem, policy: Policy, *, limits: AgentLimits | None = None
) -> Played:
    opening = environment.opening(problem)
    episode = await environment.begin(problem)
    engine = ScriptedEngine(policy, CHAT.tokenizer, CHAT.end_of_turn_id)
    agent = Agent(engine, CHAT, limits or AgentLimits(max_turns=8))
    try:
        assert [tool.schema for tool in episode.tools] == list(opening.tools)
        start = observed_start(CHAT, opening, episode)
        trace = await agent.rollout(problem, episode.tools, start=start, world=episode)
        assert CHAT.tokenizer.decode(trace.token_ids) == trace.text
        if trace.outcome is Outcome.INFRASTRUCTURE_FAULT:
            return Played(trace, None)
        return Played(trace, await episode.score(trace))
    finally:
        await episode.close()
