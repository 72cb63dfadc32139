"""Makes conversations that teach the format of a task, and that its question matters.

Most are episodes of one problem, played with the solution of another: the form of the calls is right, the results are
real, but the calls have nothing to do with the question. The rest are played with their own solution: a model from
random weights does not find out by chance that a call depends on the question.
"""

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rstar2.agent import Agent, AgentLimits, ChatFormat
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.environments.begin import observed_start
from rstar2.environments.executor import make_executor
from rstar2.environments.open import open_environment
from rstar2.environments.protocol import Environment, Opening, Services
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Outcome, Problem, Trace

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection, Recipe

OWN_SHARE = 0.3
"""The share of conversations with their own solution."""
NUM_AT_ONCE = 32

PlayedConversation = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Messages in OpenAI's form, and the offered tools."""


def warm_up_conversations(
    section: "EnvironmentSection", recipe: "Recipe", problems: Sequence[Problem], num: int, seed: str
) -> list[PlayedConversation]:
    """Play `num` conversations of problems drawn with the seed. UserError if the environment has no solutions."""
    result: list[PlayedConversation] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            result.extend(asyncio.run(_play_all(section, recipe, problems, num, seed)))
        except BaseException as error:
            failures.append(error)

    # Use a thread, because the caller may be inside an event loop.
    thread = threading.Thread(target=run, name="warm-up conversations")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return result


async def _play_all(
    section: "EnvironmentSection", recipe: "Recipe", problems: Sequence[Problem], num: int, seed: str
) -> list[PlayedConversation]:
    rng = random.Random(seed)
    asked = [rng.choice(problems) for _ in range(num)]
    pairs = [(problem, problem if rng.random() < OWN_SHARE else rng.choice(problems)) for problem in asked]
    gate = asyncio.Semaphore(NUM_AT_ONCE)
    async with (
        make_executor(recipe) as executor,
        open_environment(section, Services(recipe, executor)) as environment,
    ):

        async def play(asked: Problem, other: Problem) -> PlayedConversation:
            async with gate:
                return await _play(environment, asked, other)

        return list(await asyncio.gather(*(play(asked, other) for asked, other in pairs)))


async def _play(environment: Environment, asked: Problem, other: Problem) -> PlayedConversation:
    turns = environment.solution(other)
    if turns is None:
        raise UserError(
            f"the environment knows no solution of problem {other.id}, so it cannot write a warm-up: give its class a "
            "solution(row), or name a file of conversations"
        )
    chat = ChatFormat.of(PlainTextTokenizer())

    def policy(prompt: ScriptedPrompt) -> str:
        return turns[min(prompt.turn, len(turns) - 1)]

    engine = ScriptedEngine(policy, chat.tokenizer, chat.end_of_turn_id)
    agent = Agent(engine, chat, AgentLimits(max_turns=max(1, len(turns) - 1), max_response_tokens=1 << 20))
    opening = environment.opening(asked)
    episode = await environment.begin(asked)
    try:
        start = observed_start(chat, opening, episode)
        trace = await agent.rollout(asked, episode.tools, start=start, world=episode)
    finally:
        await episode.close()
    if trace.outcome is Outcome.INFRASTRUCTURE_FAULT:
        raise InfrastructureError(f"a warm-up conversation of problem {asked.id} was lost: {trace.note}")
    return _messages(opening, episode.observation, trace, chat), [tool.as_function() for tool in opening.tools]


def _messages(opening: Opening, observation: str, trace: Trace, chat: ChatFormat) -> list[dict[str, Any]]:
    *earlier, last = opening.messages
    messages: list[dict[str, Any]] = [*map(dict, earlier), {**last, "content": last["content"] + observation}]
    for turn in trace.turns:
        messages.append({"role": "assistant", "content": f"<reason>{turn.text.removesuffix(chat.end_of_turn)}"})
        if not turn.appended_text:
            break
        if turn.results:
            messages += [{"role": "tool", "content": result.text} for result in turn.results]
        else:
            reply = turn.appended_text.removeprefix(chat.before_user).removesuffix(chat.before_assistant)
            messages.append({"role": "user", "content": reply})
    return messages
