"""verifiers' clients, unmodified: the one that relays chats, and the one that trains on exact token ids."""

from typing import Any

import pytest

pytest.importorskip("verifiers")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "What is the sum of 12 and 30?"}], "max_tokens": 8}


async def test_the_eval_client_relays_a_chat(served: Any) -> None:
    from verifiers.v1.clients import EvalClientConfig, resolve_client
    from verifiers.v1.dialects.chat import ChatDialect
    from verifiers.v1.types import SamplingConfig

    client = resolve_client(EvalClientConfig(base_url=f"{served.root}/v1", api_key_var="NO_KEY"))
    try:
        response = await client.get_response(ChatDialect(), BODY, SamplingConfig(max_tokens=8), session_id="rollout-1")
    finally:
        await client.close()
    assert response.usage.completion_tokens == 8 and response.finish_reason == "length"


async def test_the_train_client_gets_the_ids_and_their_log_probabilities(served: Any) -> None:
    from verifiers.v1.clients import TrainClientConfig, resolve_client
    from verifiers.v1.dialects.chat import ChatDialect
    from verifiers.v1.types import SamplingConfig

    config = TrainClientConfig(
        base_url=f"{served.root}/v1", api_key_var="NO_KEY", renderer_model_name=str(served.folder)
    )
    client = resolve_client(config)
    try:
        sampling = SamplingConfig(max_tokens=8, temperature=1.0)
        response = await client.get_response(ChatDialect(), BODY, sampling, session_id="rollout-2")
    finally:
        await client.close()
    tokens = response.tokens
    assert len(tokens.completion_ids) == len(tokens.completion_logprobs) == 8
    assert all(value < 0 for value in tokens.completion_logprobs) and len(tokens.prompt_ids) > 5
