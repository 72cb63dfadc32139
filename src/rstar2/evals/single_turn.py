"""Requests that are answered in one turn: instructions, function calls, open questions. No tool is run.

The prompt is the benchmark's own messages in the model's chat template, as other harnesses ask: a model that was
trained here opens its turn there as well. The agent's system text is for problems with an answer in a box.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rstar2.agent import AgentLimits, ChatFormat
from rstar2.engine import Sampling
from rstar2.engine.tokenizer import Message
from rstar2.errors import InfrastructureError
from rstar2.evals.final_text import END_OF_TURN_KEY
from rstar2.evals.judgement import Judge, judged
from rstar2.records import Outcome, Problem, StopReason, Trace, Turn
from rstar2.rollout.driver import Driver
from rstar2.rollout.facts import RolloutSpec
from rstar2.rollout.request import RolloutRequest
from rstar2.rollout.seat import Seat

Ask = Callable[[Problem], Sequence[Message]]


def plain_question(problem: Problem) -> list[Message]:
    return [{"role": "user", "content": problem.problem}]


@dataclass(frozen=True, slots=True)
class SingleTurnRoller:
    """Satisfies `Rolls`."""

    driver: Driver[Trace]
    chat: ChatFormat
    ask: Ask
    judge: Judge
    model: str = ""
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
        prompt_ids = {problem_id: tuple(self.chat.tokenizer.encode(text)) for problem_id, text in prompts.items()}

        async def roll(seat: Seat) -> Trace:
            request = by_id[seat.spec.rollout]
            text, ids = prompts[request.problem.id], prompt_ids[request.problem.id]
            trace = await self._roll(request, seat, text, ids, limits, sampling)
            on_trace(trace)
            return trace

        specs = [
            RolloutSpec(
                rollout=request.trace_id,
                problem=request.problem.id,
                num_prompt_tokens=len(prompt_ids[request.problem.id]),
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

    def _prompt(self, problem: Problem) -> str:
        harmless = [{**message, "content": self.chat.harmless(message["content"])} for message in self.ask(problem)]
        return self.chat.tokenizer.render(harmless)

    async def _roll(
        self,
        request: RolloutRequest,
        seat: Seat,
        prompt_text: str,
        prompt_ids: tuple[int, ...],
        limits: AgentLimits,
        sampling: Sampling,
    ) -> Trace:
        drawn = replace(sampling, seed=request.seed, stop_token_ids=self.chat.stop_token_ids)
        turns: list[Turn] = []
        outcome, note = Outcome.INFRASTRUCTURE_FAULT, ""
        try:
            turn = await self._turn(seat, prompt_ids, drawn, limits.max_response_tokens)
            turns = [turn]
            outcome = _OUTCOMES[turn.stop_reason]
        except InfrastructureError as error:
            note = f"the engine failed: {error}"
        trace = Trace(
            id=request.trace_id,
            problem_id=request.problem.id,
            prompt_ids=prompt_ids,
            prompt_text=prompt_text,
            turns=tuple(turns),
            outcome=outcome,
            note=note,
            group_id=request.group_id,
            sample_index=request.sample_index,
            step=request.step,
            model=self.model,
            metadata={END_OF_TURN_KEY: self._end_of_turn(turns)},
        )
        return await judged(self.judge, request.problem, trace)

    def _end_of_turn(self, turns: Sequence[Turn]) -> str:
        last = turns[-1].token_ids[-1:] if turns else ()
        return self.chat.tokenizer.decode(last) if last and last[0] in self.chat.stop_token_ids else ""

    async def _turn(self, seat: Seat, prompt_ids: tuple[int, ...], sampling: Sampling, max_tokens: int) -> Turn:
        """A turn whose engine is lost goes on elsewhere; that is the seat's doing."""
        started_s = self.clock()
        chunks = [chunk async for chunk in seat.generate(prompt_ids, sampling, max_tokens)]
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


_OUTCOMES = {
    StopReason.END_OF_TURN: Outcome.ANSWERED,
    StopReason.TOKEN_LIMIT: Outcome.TRUNCATED,
    StopReason.CANCELLED: Outcome.INFRASTRUCTURE_FAULT,
}
