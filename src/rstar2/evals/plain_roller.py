"""Requests in the benchmark's own words: instructions, function calls, open questions.

The prompt is the benchmark's messages in the model's chat template, as other harnesses ask: a model that was trained
here opens its turn there as well. The agent's system text is for problems with an answer in a box. Most are answered in
one turn, and no tool is run.
"""

import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from rstar2.agent import AgentLimits, ChatFormat, End, Transcript
from rstar2.engine import Sampling
from rstar2.engine.tokenizer import Message
from rstar2.errors import InfrastructureError
from rstar2.evals.final_text import END_OF_TURN_KEY
from rstar2.evals.judgement import Judge, judged
from rstar2.records import Outcome, Problem, StopReason, Trace, Turn
from rstar2.records.trace import GOLD_KEY
from rstar2.rollout.driver import Driver
from rstar2.rollout.facts import RolloutSpec
from rstar2.rollout.placed_rollout import Seat
from rstar2.rollout.request import RolloutRequest

OUTCOMES = {
    StopReason.END_OF_TURN: Outcome.ANSWERED,
    StopReason.TOKEN_LIMIT: Outcome.TRUNCATED,
    StopReason.CANCELLED: Outcome.INFRASTRUCTURE_FAULT,
}
Ask = Callable[[Problem], Sequence[Message]]


@dataclass(frozen=True, slots=True)
class Speaker:
    """The model of one rollout."""

    seat: Seat
    chat: ChatFormat
    sampling: Sampling
    clock: Callable[[], float]

    async def turn(self, transcript: Transcript, max_tokens: int) -> Turn:
        """What it says next. A turn whose engine is lost goes on elsewhere; that is the seat's doing."""
        started_s, index = self.clock(), len(transcript.turns)
        sampling, seed = self.sampling, self.sampling.seed
        if seed is not None and index:
            # Turns of one rollout must not draw the same numbers again.
            sampling = replace(sampling, seed=zlib.crc32(f"{seed}/{index}".encode()))
        chunks = [chunk async for chunk in self.seat.generate(transcript.token_ids, sampling, max_tokens)]
        if not chunks or chunks[-1].stop_reason is None:
            raise InfrastructureError("the engine ended a turn without saying why")
        token_ids = tuple(token_id for chunk in chunks for token_id in chunk.token_ids)
        return Turn(
            token_ids=token_ids,
            log_probs=tuple(value for chunk in chunks for value in chunk.log_probs),
            entropies=tuple(value for chunk in chunks for value in chunk.entropies),
            text=self.chat.tokenizer.decode(token_ids),
            stop_reason=chunks[-1].stop_reason,
            policy_version=chunks[0].policy_version,
            generate_s=self.clock() - started_s,
        )


Play = Callable[[Problem, Transcript, Speaker, AgentLimits], Awaitable[tuple[Transcript, End]]]
"""How a conversation goes on from its prompt."""


def plain_question(problem: Problem) -> list[Message]:
    return [{"role": "user", "content": problem.problem}]


async def one_turn(
    _problem: Problem, transcript: Transcript, speaker: Speaker, limits: AgentLimits
) -> tuple[Transcript, End]:
    turn = await speaker.turn(transcript, limits.max_response_tokens)
    return transcript.with_turn(turn), End(OUTCOMES[turn.stop_reason])


@dataclass(frozen=True, slots=True)
class PlainRoller:
    """Satisfies `Rolls`."""

    driver: Driver[Trace]
    chat: ChatFormat
    ask: Ask
    judge: Judge
    model: str = ""
    play: Play = one_turn
    clock: Callable[[], float] = time.monotonic

    async def run(
        self,
        requests: Sequence[RolloutRequest],
        limits: AgentLimits,
        sampling: Sampling,
        on_trace: Callable[[Trace], None] = lambda _trace: None,
    ) -> list[Trace]:
        by_id = {request.trace_id: request for request in requests}
        prompts = {request.problem.id: self._prompt(request.problem) for request in requests}

        async def roll(seat: Seat) -> Trace:
            request = by_id[seat.spec.rollout]
            trace = await self._roll(request, seat, prompts[request.problem.id], limits, sampling)
            on_trace(trace)
            return trace

        specs = [
            RolloutSpec(
                rollout=request.trace_id,
                problem=request.problem.id,
                num_prompt_tokens=len(prompts[request.problem.id].prompt_ids),
                max_response_tokens=limits.max_response_tokens,
                stage=request.stage,
            )
            for request in requests
        ]
        traces = []
        for result in await self.driver.run(specs, roll):
            if isinstance(result, BaseException):
                raise result
            traces.append(result)
        return traces

    def _prompt(self, problem: Problem) -> Transcript:
        harmless = [{**message, "content": self.chat.harmless(message["content"])} for message in self.ask(problem)]
        text = self.chat.tokenizer.render(harmless)
        return Transcript(text, tuple(self.chat.tokenizer.encode(text)))

    async def _roll(
        self, request: RolloutRequest, seat: Seat, prompt: Transcript, limits: AgentLimits, sampling: Sampling
    ) -> Trace:
        drawn = replace(sampling, seed=request.seed, stop_token_ids=self.chat.stop_token_ids)
        speaker = Speaker(seat, self.chat, drawn, self.clock)
        try:
            transcript, end = await self.play(request.problem, prompt, speaker, limits)
        except InfrastructureError as error:
            transcript, end = prompt, End(Outcome.INFRASTRUCTURE_FAULT, f"the rollout was lost: {error}")
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
            model=self.model,
            metadata={END_OF_TURN_KEY: self._end_of_turn(transcript.turns), GOLD_KEY: request.problem.answer},
        )
        return await judged(self.judge, request.problem, trace)

    def _end_of_turn(self, turns: Sequence[Turn]) -> str:
        last = turns[-1].token_ids[-1:] if turns else ()
        return self.chat.tokenizer.decode(last) if last and last[0] in self.chat.stop_token_ids else ""
