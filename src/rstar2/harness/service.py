"""The model server for programs; it records prompts and samples for the caller's episode."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from rstar2.agent import ToolSchema
from rstar2.agent.chat_template import ChatFormat
from rstar2.engine import Chunk, EngineLoad, Sampling
from rstar2.errors import UserError
from rstar2.harness.conversation import Said, continued, heading_of, said_by
from rstar2.harness.recording import ASKED, CURRENT, PendingChat
from rstar2.serve import ServedModel, ServeSettings
from rstar2.serve.bodies import ChatMessage, ChatRequest
from rstar2.serve.chat_text import ChatText, message_of
from rstar2.serve.generation import Ask, Piece
from rstar2.serve.prompts import ChatPrompt, PromptWriter, forced_call
from rstar2.serve.service import ModelService, Usage
from rstar2.serve.weights import BASE


class EpisodesEngine:
    """Satisfies `Engine`: each request runs on the engine of its episode."""

    def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        return CURRENT.get().generate(session, token_ids, sampling, max_tokens)

    def load(self) -> EngineLoad:
        return EngineLoad.with_unknown_cache(0, 0, 0)

    async def cancel(self, _session: str) -> None:
        """A request ends when its caller leaves."""

    async def release(self, _session: str) -> None:
        """The end of the rollout releases the engine."""

    async def close(self) -> None:
        """The run owns the engine."""


class RecordedPrompts(PromptWriter):
    """Writes conversations as training does, with the sampled ids of earlier answers."""

    def __init__(self, chat: ChatFormat) -> None:
        super().__init__(chat)
        self._format = chat

    def write(self, request: ChatRequest) -> ChatPrompt:
        if request.messages[-1].role == "assistant":
            raise UserError("messages: the last one is the assistant's; end with one that it can answer")
        chat = self._format
        heading, said = heading_of(request), tuple(map(said_by, request.messages))
        opening = forced_call(request, is_reasoning=True)
        ASKED.set(PendingChat(heading, said, lambda text: _answered(request, opening, text)))
        exchange = continued(CURRENT.get().exchanges, heading, said)
        if exchange is None:
            tools = [
                ToolSchema(tool.function.name, tool.function.description or "", tool.function.parameters or {})
                for tool in request.tools or ()
            ]
            ids = chat.tokenizer.encode(chat.conversation_text(self.as_text(request.messages), tools) + opening)
        else:
            rest = self.as_text(request.messages[len(exchange.asked) + 1 :])
            has_ended = exchange.call.token_ids[-1] == chat.end_of_turn_id
            text = chat.following_text(rest, after_end_of_turn=has_ended) + opening
            ids = [*exchange.call.all_ids, *chat.user_turn_ids(text, after_end_of_turn=has_ended)]
        return ChatPrompt(ids, is_reasoning=True, opening=opening)


def _answered(request: ChatRequest, opening: str, text: str) -> Said:
    """The caller's message for the model's text."""
    reader = ChatText.of(request, is_reasoning=True, opening=opening)
    message: dict[str, Any] = message_of([*reader.feed(text), *reader.finish()])
    return said_by(ChatMessage.model_validate(message))


class RecordedService(ModelService):
    def __init__(self, model: ServedModel, settings: ServeSettings) -> None:
        super().__init__(model, settings)
        self.prompts = RecordedPrompts(model.chat)

    def weights_named(self, _model: str | None) -> str:
        """The trained model's weights, whichever model the program names."""
        return BASE

    def asks(self, *args: Any, **kwargs: Any) -> list[Ask]:
        return CURRENT.get().admitted(super().asks(*args, **kwargs))

    async def pieces(self, asks: Sequence[Ask], usage: Usage, *, has_text: bool = True) -> AsyncGenerator[Piece]:
        """Generate the whole answer, then yield its pieces: a slow reader does not delay other requests of its
        episode."""
        counted = super().pieces
        for piece in await CURRENT.get().answer(asks, lambda: counted(asks, usage, has_text=has_text)):
            yield piece
