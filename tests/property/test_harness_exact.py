"""Programs that cut, edit, branch, repeat and ask at the same time: what is recorded is what the engine did."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from agent_tokenizers import FAMILIES, family_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rstar2.agent import Agent, AgentLimits, ChatFormat
from rstar2.engine import Chunk, EngineLoad, Sampling
from rstar2.harness.door import Address, Door
from rstar2.harness.recording import Recording
from rstar2.harness.stitch import Call, stitched
from rstar2.harness.trace import trace_of
from rstar2.records import Outcome, Problem, StopReason, Trace

pytestmark = pytest.mark.property

CALL = '<tool_call>\n{"name": "look", "arguments": {"at":  "%s"}}\n</tool_call>'
SAYINGS = ("so", " be it", "</reason>", "\n", "é", "  ", CALL % "sea", CALL % "sky", "42", "<tool_call>", "\n\n")
LOOK = {
    "name": "look",
    "description": "Look.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}


@dataclass
class LoggingEngine:
    """Says random things, in pieces that no tokenizer would choose, and remembers all of it."""

    chat: ChatFormat
    rng: random.Random
    log: list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]] = field(default_factory=list)

    async def generate(
        self, _session: str, token_ids: Sequence[int], _sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        ids = [each for _ in range(self.rng.randrange(5)) for each in self._saying()]
        is_whole = self.rng.random() < 0.8
        ids = [*ids, self.chat.end_of_turn_id] if is_whole else ids or self._saying()
        is_cut = len(ids) > max_tokens or not is_whole
        ids = ids[:max_tokens]
        log_probs = tuple(-self.rng.random() for _ in ids)
        middle = self.rng.randrange(len(ids))
        await asyncio.sleep(0)
        yield Chunk(tuple(ids[:middle]), log_probs[:middle])
        self.log.append((tuple(token_ids), tuple(ids), log_probs))
        reason = StopReason.TOKEN_LIMIT if is_cut else StopReason.END_OF_TURN
        yield Chunk(tuple(ids[middle:]), log_probs[middle:], stop_reason=reason)

    def _saying(self) -> list[int]:
        text = self.rng.choice(SAYINGS)
        if self.rng.random() < 0.5:
            return self.chat.tokenizer.encode(text)
        return [each for letter in text for each in self.chat.tokenizer.encode(letter)]

    def load(self) -> EngineLoad:
        return EngineLoad.with_unknown_cache(0, 0, 0)

    async def cancel(self, _session: str) -> None: ...

    async def release(self, _session: str) -> None: ...

    async def close(self) -> None: ...


@dataclass
class Program:
    """A harness whose every move is drawn. Each conversation is a list of messages."""

    http: aiohttp.ClientSession
    address: Address
    rng: random.Random
    conversations: list[list[dict[str, Any]]] = field(default_factory=list)
    num_broken: int = 0
    """Moves after which a conversation is not what it was plus something."""

    async def move(self, kind: str) -> None:
        if kind == "begin" or not self.conversations:
            self.num_broken += 1
            self.conversations.append([{"role": "user", "content": f"Look at {self.rng.random()}."}])
            await self.ask(self.conversations[-1])
            return
        messages = self.rng.choice(self.conversations)
        if kind == "continue":
            await self.ask(_answered(messages))
            return
        self.num_broken += 1
        if kind == "branch":
            self.conversations.append(_answered(messages[: self.rng.randrange(1, len(messages) + 1)]))
        elif kind == "retry":
            while messages[-1]["role"] == "assistant":
                messages.pop()
        elif kind == "cut":
            del messages[1 : self.rng.randrange(1, len(messages) + 1)]
            _answered(messages)
        elif kind == "edit":
            changed = self.rng.randrange(len(messages))
            messages[changed] = {"role": messages[changed]["role"], "content": f"Edited {self.rng.random()}."}
            _answered(messages)
        elif kind == "together":
            self.num_broken += 1
            self.conversations += [[*_answered(list(messages))], [*_answered(list(messages))]]
            await asyncio.gather(*map(self.ask, self.conversations[-2:]))
            return
        await self.ask(self.conversations[-1] if kind == "branch" else messages)

    async def ask(self, messages: list[dict[str, Any]]) -> None:
        body: dict[str, Any] = {"model": "anything", "messages": messages, "temperature": 0.2}
        body["tools"] = [{"type": "function", "function": LOOK}]
        body["stream"] = False
        headers = {"Authorization": f"Bearer {self.address.api_key}"}
        async with self.http.post(f"{self.address.base_url}/chat/completions", json=body, headers=headers) as response:
            document = await response.json()
            assert response.status == 200, document
        message = document["choices"][0]["message"]
        if self.rng.random() < 0.7:
            message.pop("reasoning_content", None)
        messages.append(json.loads(json.dumps(message)))


def _answered(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with what must follow an assistant's."""
    last = messages[-1]
    if last["role"] != "assistant":
        return messages
    calls = last.get("tool_calls") or ()
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": "blue"} for call in calls]
    if not calls:
        messages.append({"role": "user", "content": "And then?"})
    return messages


async def _played(family: str, seed: int, moves: Sequence[str]) -> tuple[Trace, LoggingEngine, Program, Recording]:
    rng = random.Random(seed)
    chat = ChatFormat.of(family_tokenizer(family))
    engine = LoggingEngine(chat, rng)
    agent = Agent(engine, chat, AgentLimits(max_turns=1000, max_response_tokens=1 << 20), Sampling(seed=seed))
    recording = Recording("t", agent, 1 << 20)
    door = Door("model", 60.0)
    await door.open(chat)
    try:
        async with aiohttp.ClientSession() as http, door.lent(recording) as address:
            program = Program(http, address, rng)
            for move in moves:
                await program.move(move)
    finally:
        await door.close()
    trace = trace_of(recording.calls, chat, Problem("p", "p", ""), "t", Outcome.ANSWERED, "", "")
    return trace, engine, program, recording


def _turns_of(trace: Trace) -> Counter[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    """What the engine must have seen and sampled, by the trace."""
    found: Counter[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]] = Counter()
    for segment in trace.segments:
        before = segment.prompt_ids
        for turn in segment.turns:
            found[before, turn.token_ids, turn.log_probs] += 1
            before += turn.token_ids + turn.appended_ids
        assert before == segment.token_ids
    return found


def _can_be_told_apart(recording: Recording) -> bool:
    """Whether no two conversations of the program have the same messages. Of two that do, without the reasoning that it
    left out, nobody knows which one it continues: a wrong guess is one more segment, and still exact."""
    seen = []
    for each in recording.exchanges:
        role, content, _, calls = each.answered
        seen.append((each.heading, tuple((said[0], said[1], said[3]) for said in each.asked), (role, content, calls)))
    return len(set(seen)) == len(seen)


MOVES = ("continue", "continue", "begin", "branch", "retry", "cut", "edit", "together")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(FAMILIES), st.integers(0, 1 << 30), st.lists(st.sampled_from(MOVES), min_size=1, max_size=12))
def test_recorded_ids_are_those_that_the_engine_saw_and_sampled_each_once(
    family: str, seed: int, moves: list[str]
) -> None:
    trace, engine, program, recording = asyncio.run(_played(family, seed, moves))
    assert _turns_of(trace) == Counter(engine.log)
    num_learnt = sum(sum(segment.loss_mask) for segment in trace.segments)
    assert num_learnt == sum(len(ids) for _, ids, _ in engine.log) == trace.num_sampled_tokens
    assert sum(trace.loss_mask) == num_learnt and len(trace.loss_mask) == len(trace.token_ids) == len(trace.log_probs)
    if _can_be_told_apart(recording):
        assert len(trace.segments) <= program.num_broken


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(FAMILIES), st.integers(0, 1 << 30), st.integers(1, 8))
def test_a_program_that_only_continues_makes_one_segment(family: str, seed: int, num_moves: int) -> None:
    trace, engine, _, _ = asyncio.run(_played(family, seed, ["begin"] + ["continue"] * num_moves))
    assert len(trace.segments) == 1
    assert len(trace.turns) == len(engine.log) == num_moves + 1


ids = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)


@given(st.lists(st.tuples(ids, ids), max_size=8))
def test_every_call_is_one_turn_of_one_segment(pairs: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """With ids so few that prompts begin with earlier answers by chance."""
    calls = [Call(prompt, sampled, (0.0,) * len(sampled)) for prompt, sampled in pairs]
    segments = stitched(calls)
    assert Counter(map(id, calls)) == Counter(id(call) for segment in segments for call in segment.calls)
    for segment in segments:
        built = segment.calls[0].prompt_ids
        for call, appended in zip(segment.calls, segment.appended_ids, strict=True):
            assert built == call.prompt_ids
            built += call.token_ids + appended
