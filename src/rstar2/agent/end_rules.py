"""Decides when a rollout ends. Pure.

A model has `max_turns` turns in which its calls are run. If it still calls in the last of them, those calls are run as
well and one more turn is granted to answer in, within the same token budget; calls made in that one are not run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rstar2.errors import UserError
from rstar2.records import Fault, Outcome, StopReason, ToolResult
from rstar2.sandbox.execution import STARVED_FACTOR
from rstar2.settings import pick

if TYPE_CHECKING:
    from rstar2.config import EvalSection, Recipe, StageSection


MAX_CALLS_IN_TURN = 4
"""How many calls of one turn may wait for one another, if an environment's object takes one call at a time."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    max_turns: int = 10
    max_response_tokens: int = 8192
    """The most tokens after the prompt, the model's and the environment's together."""
    max_tool_output_tokens: int = 1024
    """The most tokens of one tool result; of a longer one head and tail are kept."""
    max_fault_retries: int = 2
    """How often a call or a turn that failed through our fault is retried."""
    tool_deadline_s: float = 300.0
    """The timeout of one attempt at one call. It is above the sandbox's own queue and wall-clock limits."""

    @classmethod
    def of(cls, recipe: "Recipe", within: "StageSection | EvalSection") -> Self:
        # The deadline is above those of sandbox and environments, so that these stop what is late, and say why.
        sandbox = recipe.sandbox
        sections = (recipe.environment, *recipe.environments.values())
        of_environments = max(MAX_CALLS_IN_TURN * section.deadline_s for section in sections)
        servers = [server for section in sections for server in section.mcp.values()]
        of_servers = max((2 * server.timeout_s for server in servers), default=0.0)  # a start and a call
        of_sandbox = sandbox.queue_s + STARVED_FACTOR * sandbox.limits.wall_s
        tool_deadline_s = max(of_sandbox, of_environments, of_servers) + 30.0
        return pick(cls, within, recipe.agent, recipe.rollout, tool_deadline_s=tool_deadline_s)

    def __post_init__(self) -> None:
        least_of = {"max_turns": 1, "max_response_tokens": 1, "max_tool_output_tokens": 16, "max_fault_retries": 0}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class End:
    outcome: Outcome
    note: str = ""


def after_turn(
    stop_reason: StopReason, num_calls: int, num_turns: int, num_tokens_left: int, limits: AgentLimits
) -> End | None:
    """Whether the turn that just ended was the last. None if its calls are to be run."""
    if stop_reason is StopReason.CANCELLED:
        return End(Outcome.INFRASTRUCTURE_FAULT, f"turn {num_turns} was cancelled")
    if stop_reason is StopReason.TOKEN_LIMIT:
        return End(Outcome.TRUNCATED, f"the budget of {limits.max_response_tokens} tokens ran out in turn {num_turns}")
    if num_calls == 0:
        return End(Outcome.ANSWERED)
    if num_turns > limits.max_turns:
        return End(
            Outcome.TURN_LIMIT,
            f"it called a tool in the answer turn granted after its {limits.max_turns} turns; that was not run",
        )
    if num_tokens_left == 0:
        return _no_room(num_turns, limits, "its last turn used up the token budget; its calls were not run")
    return None


def after_reply(num_appended: int, num_turns: int, num_tokens_left: int, limits: AgentLimits) -> End | None:
    """Whether the rollout ends although the user has replied. None if the reply is appended and the model continues."""
    if num_turns > limits.max_turns:
        return End(Outcome.TURN_LIMIT, f"the user had more to say after its {limits.max_turns} turns")
    if num_appended >= num_tokens_left:
        left = f"{num_tokens_left} of {limits.max_response_tokens} tokens were left"
        return _no_room(num_turns, limits, f"the user's reply takes {num_appended} tokens, and {left}")
    return None


def after_calls(
    results: Sequence[ToolResult], num_appended: int, num_turns: int, num_tokens_left: int, limits: AgentLimits
) -> End | None:
    """Whether the rollout ends with these results. None if they are appended and the model continues."""
    for result in results:
        if result.fault is Fault.INFRASTRUCTURE:
            reason = f"the infrastructure failed a tool call {result.num_attempts} times: {result.text}"
            return End(Outcome.INFRASTRUCTURE_FAULT, reason)
    if num_appended >= num_tokens_left:
        left = f"{num_tokens_left} of {limits.max_response_tokens} tokens were left"
        return _no_room(num_turns, limits, f"the results of its calls take {num_appended} tokens, and {left}")
    return None


def _no_room(num_turns: int, limits: AgentLimits, reason: str) -> End:
    if num_turns == limits.max_turns:
        return End(Outcome.TURN_LIMIT, f"no last turn to answer in: {reason}")
    return End(Outcome.TRUNCATED, reason)
