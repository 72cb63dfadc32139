"""Request bodies: OpenAI's fields, those that vLLM adds, and which of them are not supported.

Unknown fields are ignored, because clients send many about billing and storage. A known field that no engine here
supports is refused, unless its value has no effect.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from rstar2.serve.errors import unsupported

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_LOGPROBS = 100
_INT64 = 1 << 63

_CHANGES_NOTHING: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "allowed_token_ids": ([],),
    "logprob_token_ids": ([],),
    "bad_words": ([],),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "chat_template": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "modalities": (["text"],),
    "audio": (),
    "functions": ([],),
    "function_call": ("none",),
    "features": ({},),
    "content_parts": ([],),
}
"""Fields that no engine here supports, with the values (besides null) that have no effect."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow")

    def refuse_unsupported(self) -> None:
        """Raise ApiError for a field that would change the answer and is not supported."""
        for name, value in (self.model_extra or {}).items():
            neutral = _CHANGES_NOTHING.get(name)
            if neutral is not None and value is not None and value not in neutral:
                raise unsupported(name, "it is not supported here; leave it out")


class StreamOptions(BaseModel):
    include_usage: bool | None = False


Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]


class SamplingFields(_Body):
    """Fields about how tokens are sampled, and where an answer ends."""

    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1, lt=1 << 31)
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    n: int | None = Field(None, ge=1)
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class _OpenAIFields(SamplingFields):
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ContentPart(BaseModel):
    type: str
    text: str | None = None


class CalledFunction(BaseModel):
    name: str
    arguments: str | dict[str, Any] = "{}"


class MessageCall(BaseModel):
    id: str | None = None
    function: CalledFunction


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None


class FunctionSchema(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(BaseModel):
    type: Literal["function"] = "function"
    function: FunctionSchema


class NamedFunction(BaseModel):
    name: str


class NamedChoice(BaseModel):
    type: Literal["function"] = "function"
    function: NamedFunction


class ChatRequest(_OpenAIFields):
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ToolBody] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = True
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(_OpenAIFields):
    prompt: (
        str
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1)]
    )
    max_tokens: int | None = Field(16, ge=0)
    echo: bool | None = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool = True


class GenerateSampling(SamplingFields):
    max_tokens: int | None = Field(None, ge=1)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)


class GenerateRequest(_Body):
    """vLLM's route for callers that tokenize themselves."""

    request_id: str | None = None
    model: str | None = None
    token_ids: list[TokenId] = Field(min_length=1)
    sampling_params: GenerateSampling = Field(default_factory=GenerateSampling)
    stream: bool | None = False


class LoadAdapterRequest(BaseModel):
    lora_name: str = Field(min_length=1, max_length=256)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False


class UnloadAdapterRequest(BaseModel):
    lora_name: str


class WeightsFolder(BaseModel):
    model_config = ConfigDict(extra="allow")

    weights_path: str | None = None


class UpdateWeightsRequest(BaseModel):
    update_info: WeightsFolder


CHAT = TypeAdapter(ChatRequest)
COMPLETION = TypeAdapter(CompletionRequest)
GENERATE = TypeAdapter(GenerateRequest)
LOAD_ADAPTER = TypeAdapter(LoadAdapterRequest)
UNLOAD_ADAPTER = TypeAdapter(UnloadAdapterRequest)
UPDATE_WEIGHTS = TypeAdapter(UpdateWeightsRequest)
COLLECTIVE_RPC = TypeAdapter(dict[str, Any])
