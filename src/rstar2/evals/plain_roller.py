"""Rolls out requests exactly as the benchmark states them: instructions, function calls, open questions.

The prompt is the benchmark's messages in the model's chat template, as in other harnesses; the template of a model
trained here opens its turn as well. The agent's system text is only for problems with a boxed answer. Most requests are
answered in one turn, and no tool runs.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from rstar2.agent import AgentLimits, ChatFormat, End, Transcript
from rstar2.agent.generate import TurnRequest, generate_turn, sampling_of_turn
from rstar2.engine import Sampling
from rstar2.engine.protocol import Message
from rstar2.errors import InfrastructureError
from rstar2.records import Outcome, Problem, StopReason, Trace, Turn
from rstar2.records.trace import END_OF_TURN_KEY, GOLD_KEY
from rstar2.rollout.driver import Driver
from rstar2.rollout.judge import Judge, judged
from rstar2.rollout.placed_rollout import PlacedRollout
from rstar2.rollout.roller import Roller
from rstar2.rollout.trees.grow import LeafRequest

OUTCOMES = {
    StopReason.END_OF_TURN: Outcome.ANSWERED,
    StopReason.TOKEN_LIMIT: Outcome.TRUNCATED,
    StopReason.CANCELLED: Outcome.INFRASTRUCTURE_FAULT,
}


@dataclass(frozen=True, slots=True)
class Speaker:
    """The model as the speaker of one rollout."""

    placed: PlacedRollout
    chat: ChatFormat
    sampling: Sampling
    max_retries: int
    clock: Callable[[], float]

    async def turn(self, transcript: Transcript, max_tokens: int) -> Turn:
        """The model's next turn. If its engine is lost, the turn moves to another."""
        number = len(transcript.turns)
        sampling = sampling_of_turn(self.sampling, number) if number else self.sampling
        return await generate_turn(
            self.placed.generate,
            self.chat,
            TurnRequest(number, transcript.token_ids, sampling, max_tokens),
            max_retries=self.max_retries,
            clock=self.clock,
            waited_s=lambda: self.placed.waited_s,
            reports_text=False,
        )


Ask = Callable[[Problem], Sequence[Message]]
Play = Callable[[Problem, Transcript, Speaker, AgentLimits], Awaitable[tuple[Transcript, End]]]
"""Continues a conversation from its prompt to its end."""


def plain_question(problem: Problem) -> list[Message]:
    return [{"role": "user", "content": problem.problem}]


async def one_turn(
    _problem: Problem, transcript: Transcript, speaker: Speaker, limits: AgentLimits
) -> tuple[Transcript, End]:
    turn = await speaker.turn(transcript, limits.max_response_tokens)
    return transcript.with_turn(turn), End(OUTCOMES[turn.stop_reason])


class PlainRoller(Roller):
    """A roller without the agent: `ask` writes the prompt, `play` the rest of the conversation."""

    def __init__(
        self, driver: Driver[Trace], chat: ChatFormat, ask: Ask, judge: Judge, model: str = "", play: Play = one_turn
    ) -> None:
        super().__init__(driver, chat, {}, model)
        self._judge = judge
        self._ask = ask
        self._play = play

    def _start(self, problem: Problem) -> Transcript:
        harmless = [{**message, "content": self.chat.harmless(message["content"])} for message in self._ask(problem)]
        text = self.chat.tokenizer.render(harmless)
        return Transcript(text, tuple(self.chat.tokenizer.encode(text)))

    async def _roll(
        self, leaf: LeafRequest, start: Transcript, placed: PlacedRollout, limits: AgentLimits, sampling: Sampling
    ) -> Trace:
        request = leaf.request
        assert request.tree is None, "a conversation without an episode is not forked"
        sampling = replace(sampling, seed=request.seed, stop_token_ids=self.chat.stop_token_ids)
        speaker = Speaker(placed, self.chat, sampling, limits.max_fault_retries, time.monotonic)
        try:
            transcript, end = await self._play(request.problem, start, speaker, limits)
        except InfrastructureError as error:
            transcript, end = start, End(Outcome.INFRASTRUCTURE_FAULT, f"the rollout was lost: {error}")
        trace = Trace(
            id=request.trace_id,
            problem_id=request.problem.id,
            prompt_ids=transcript.prompt_ids,
            prompt_text=transcript.prompt_text,
            turns=transcript.turns,
            outcome=end.outcome,
            note=end.note,
            group_id=request.group_id,
            sample_index=request.sample_index,
            step=request.step,
            model=self._model,
            metadata={END_OF_TURN_KEY: self.chat.end_of(transcript.turns), GOLD_KEY: request.problem.answer},
        )
        return await judged(self._judge, request.problem, trace)
