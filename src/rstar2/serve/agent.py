"""`POST /v1/chat/completions` of an agent: the tool loop runs inside the server.

Each choice of a request is one episode of the environment. The last message is the problem; earlier messages are
history, of which only the texts count. The answer is one assistant message. When the caller disconnects or its time is
up, its episodes end, and the engine, the sandbox and the environment keep nothing of them.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from aiohttp import web

from rstar2.agent import AgentEvent
from rstar2.engine import Sampling
from rstar2.environments.begin import asked_problem
from rstar2.records import Trace
from rstar2.serve.agent_reply import AgentReply
from rstar2.serve.bodies import CHAT, ChatMessage, ChatRequest
from rstar2.serve.episode import EpisodeRequest, ServedAgent, ServedConversation, run_episode
from rstar2.serve.errors import OpenAIError, unsupported
from rstar2.serve.generation import with_seed_of
from rstar2.serve.prompts import role_of, text_of
from rstar2.serve.routing import parsed_body, streamed
from rstar2.serve.service import EventStream, ModelService, Usage

_OF_A_MODEL = ("stop", "stop_token_ids", "ignore_eos", "logprobs", "top_logprobs", "chat_template_kwargs")
"""Fields that shape a model's single turn."""

Happening = tuple[int, AgentEvent | Trace]
"""A choice's number and one of its events; a choice's last event is its trace."""


class AgentApi:
    def __init__(self, service: ModelService, agent: ServedAgent) -> None:
        self._service = service
        self._agent = agent

    async def handle(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        body = await parsed_body(service, request, CHAT)
        refuse_fields(body)
        if body.return_token_ids:
            service.require_exact("return_token_ids")
        conversation, num_choices, usage = read_conversation(body.messages), body.n or 1, Usage()
        self._agent.environment.opening(conversation.problem)  # raises if the problem is invalid
        stream = EventStream(request, service.settings.transfer_timeout_s)
        async with streamed(stream), service.begun(request, body.model, num_choices) as sessions:
            reply = AgentReply(body, service.model)
            async with aclosing(self._happenings(self._requests(body, conversation, sessions), usage)) as happenings:
                async for choice, event in happenings:
                    for document in reply.take(choice, event):
                        if body.stream:
                            await stream.send(document)
            if not body.stream:
                return web.json_response(reply.full(usage))
            if body.wants_usage:
                await stream.send(reply.usage_document(usage))
        return await stream.end()

    def _requests(
        self, body: ChatRequest, conversation: ServedConversation, sessions: Sequence[str]
    ) -> list[EpisodeRequest]:
        sampling = sampling_of(body, self._agent.sampling)
        max_tokens = body.max_completion_tokens or body.max_tokens
        return [
            EpisodeRequest(conversation, with_seed_of(sampling, choice), session, max_tokens)
            for choice, session in enumerate(sessions)
        ]

    async def _happenings(self, asked: Sequence[EpisodeRequest], usage: Usage) -> AsyncGenerator[Happening]:
        """Run all choices concurrently; yields each event at once. An error of one choice ends them all."""
        arriving: asyncio.Queue[Happening | Exception] = asyncio.Queue()

        async def run(choice: int, episode: EpisodeRequest) -> None:
            def observe(event: AgentEvent) -> None:
                arriving.put_nowait((choice, event))

            try:
                trace = await run_episode(self._service, self._agent, episode, usage, observe)
                arriving.put_nowait((choice, trace))
            except Exception as error:
                arriving.put_nowait(error)

        tasks = [asyncio.create_task(run(choice, each), name="an episode") for choice, each in enumerate(asked)]
        try:
            num_left = len(tasks)
            while num_left:
                item = await arriving.get()
                if isinstance(item, Exception):
                    raise item
                num_left -= isinstance(item[1], Trace)
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def refuse_fields(body: ChatRequest) -> None:
    """Raise OpenAIError for a field that an agent cannot follow."""
    body.refuse_unsupported()
    if body.tools or (body.tool_choice or "auto") not in ("auto", "none"):
        raise unsupported("tools", "this server runs an agent with its own tools; leave yours out, or serve the model")
    for name in _OF_A_MODEL:
        if getattr(body, name):
            raise unsupported(name, "this server runs an agent, which has turns of its own; leave it out")


def read_conversation(messages: Sequence[ChatMessage]) -> ServedConversation:
    """Parse the messages. OpenAIError unless they are a conversation that ends with a user's question."""
    turns = [{"role": role_of(message), "content": text_of(message)} for message in messages]
    for number, message in enumerate(messages):
        if message.role == "tool" or message.tool_calls:
            reason = f"message {number + 1} is about a tool of the caller's; send the texts of earlier turns alone"
            raise unsupported("messages", reason)
    system = tuple(turn for turn in turns if turn["role"] == "system")
    spoken = [turn for turn in turns if turn["role"] != "system"]
    if not spoken or spoken[-1]["role"] != "user" or not spoken[-1]["content"].strip():
        raise OpenAIError(400, "messages: the last one must be the user's, with something in it", param="messages")
    said = "\n".join(turn["content"] for turn in system)
    problem = asked_problem(spoken[-1]["content"].strip())
    return ServedConversation(
        problem, ({"role": "system", "content": said},) if said.strip() else (), tuple(spoken[:-1])
    )


def sampling_of(body: ChatRequest, default: Sampling) -> Sampling:
    given = {name: getattr(body, name) for name in ("temperature", "top_p", "top_k", "seed")}
    given["top_k"] = None if body.top_k is None else max(body.top_k, 0)
    return replace(default, **{name: value for name, value in given.items() if value is not None})
