"""A served model as its operator and its trainer meet it: access, back-pressure, cancelling, draining, weights."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from peft import LoraConfig, get_peft_model
from served_app import Running, running, until
from transformers import AutoModelForCausalLM

from model_server import tiny_model
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.serve import ServeSettings

pytestmark = pytest.mark.integration

PROMPT = [5, 9, 300, 12, 40, 41]
LONG = {"prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "stream": True}


async def post(found: Running, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
    async with found.http.post(found.root + path, json=body, **options) as response:
        text = await response.text()
        return response.status, json.loads(text) if response.content_type == "application/json" else text


async def ids_of(found: Running, model: str | None = None, **fields: Any) -> list[int]:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "return_token_ids": True, **fields}
    status, document = await post(found, "/v1/completions", body)
    assert status == 200, document
    ids: list[int] = document["choices"][0]["token_ids"]
    return ids


async def test_only_callers_with_a_key_and_no_pages_of_other_sites(tiny_served: Path) -> None:
    async with running(tiny_served, ServeSettings(keys=frozenset({"first", "second"}))) as found:
        body = {"prompt": "one", "max_tokens": 1}
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer other"}, 401),
            ({"Authorization": "Basic first"}, 401),
            ({"Authorization": "Bearer first"}, 200),
            ({"Authorization": "Bearer second"}, 200),
            ({"Authorization": "Bearer first", "Origin": "http://elsewhere.example"}, 403),
        ):
            found_status, document = await post(found, "/v1/completions", body, headers=headers)
            assert found_status == status, headers
            assert status == 200 or document["error"]["message"]
        async with found.http.get(f"{found.root}/health") as response:
            assert response.status == 200


async def test_without_keys_only_its_own_names_are_answered(tiny_served: Path) -> None:
    async with running(tiny_served) as found:
        status, document = await post(found, "/v1/completions", {"prompt": "x"}, headers={"Host": "rebound.example"})
        assert status == 403 and "rebound.example" in document["error"]["message"]
        async with found.http.post(f"{found.root}/v1/completions", data=b'{"prompt": "x"}') as response:
            assert response.status == 415


async def test_over_capacity_callers_are_asked_to_retry(tiny_served: Path) -> None:
    async with running(tiny_served, ServeSettings(max_in_flight=2)) as found:
        status, document = await post(found, "/v1/completions", {"prompt": "x", "n": 3})
        assert status == 400 and document["error"]["param"] == "n"
        async with found.http.post(f"{found.root}/v1/completions", json={**LONG, "n": 2}) as held:
            await held.content.readline()
            async with found.http.post(f"{found.root}/v1/completions", json={"prompt": "x"}) as response:
                assert response.status == 429 and int(response.headers["Retry-After"]) >= 1
                assert (await response.json())["error"]["type"] == "rate_limit_error"
            held.close()
        await until(lambda: found.service.admission.num_in_flight == 0)
        assert (await post(found, "/v1/completions", {"prompt": "x"}))[0] == 200


@pytest.mark.parametrize(("stream", "apart"), [(True, False), (False, False), (True, True)])
async def test_a_caller_that_leaves_is_cancelled_in_the_engine(tiny_served: Path, stream: bool, apart: bool) -> None:
    async with running(tiny_served, apart=apart) as found:
        asking = asyncio.ensure_future(post(found, "/v1/completions", {**LONG, "stream": stream}))
        await until(lambda: found.engine.load().num_running == 1)
        asking.cancel()
        await until(lambda: found.engine.load().num_running == 0)
        assert found.engine.load().num_generated_tokens < 1500
        await until(lambda: found.service.admission.num_in_flight == 0)


async def test_draining_finishes_what_runs_and_takes_nothing_new(tiny_served: Path) -> None:
    async with running(tiny_served) as found:
        finishing = asyncio.ensure_future(ids_of(found, max_tokens=200, ignore_eos=True))
        await until(lambda: found.engine.load().num_running == 1)
        keeping = aiohttp.ClientSession()
        async with keeping.get(f"{found.root}/health") as response:  # a connection that exists already
            await response.read()
        draining = asyncio.ensure_future(found.server.drain(30.0))
        await until(lambda: found.service.admission.is_draining)
        async with keeping.post(f"{found.root}/v1/completions", json={"prompt": "x"}) as response:
            assert response.status == 503 and "Retry-After" in response.headers
        async with keeping.get(f"{found.root}/health") as response:
            assert response.status == 503
        await keeping.close()
        assert len(await finishing) == 200 and await draining


async def test_the_time_of_a_request_ends_before_and_in_the_middle_of_a_stream(tiny_served: Path) -> None:
    async with running(tiny_served, ServeSettings(request_timeout_s=3, allows_updates=True)) as found:
        async with found.http.post(f"{found.root}/v1/completions", json=LONG) as response:
            await response.content.readline()
            assert (await post(found, "/pause?mode=keep"))[0] == 200
            status, document = await post(found, "/v1/completions", {"prompt": "x"})
            assert status == 504 and document["error"]["code"] == "timeout"
            lines = (await response.text()).splitlines()
        assert (await post(found, "/resume"))[0] == 200
        assert '"code":"timeout"' in lines[-4] and lines[-2] == "data: [DONE]"
        await until(lambda: found.engine.load().num_running == 0)


async def test_a_pause_that_fails_does_not_undo_an_earlier_one(tiny_served: Path) -> None:
    async def is_paused() -> bool:
        async with found.http.get(f"{found.root}/is_paused") as response:
            paused: bool = (await response.json())["is_paused"]
            return paused

    async with running(tiny_served, ServeSettings(request_timeout_s=1, allows_updates=True)) as found:
        async with found.service.gate.leased(""):
            assert (await post(found, "/pause?mode=wait"))[0] == 504 and not await is_paused()
            assert (await post(found, "/pause?mode=keep"))[0] == 200
            assert (await post(found, "/pause?mode=wait"))[0] == 504 and await is_paused()
            assert (await post(found, "/resume"))[0] == 200 and not await is_paused()
        assert await ids_of(found)


async def test_a_pause_that_fails_leaves_one_that_still_waits(tiny_served: Path) -> None:
    async with running(tiny_served, ServeSettings(allows_updates=True)) as found:
        gate = found.service.gate
        async with gate.leased(""):
            first, second = (asyncio.ensure_future(gate.pause("wait", found.service.cancel_all)) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            await asyncio.wait([first])
            assert gate.is_paused
        await second
        assert gate.is_paused
        await gate.resume()


async def test_bodies_beyond_the_limit_are_refused(tiny_served: Path) -> None:
    async with running(tiny_served, ServeSettings(max_body_bytes=1000)) as found:
        status, document = await post(found, "/v1/completions", {"prompt": "x" * 2000})
        assert status == 413 and document["error"]["message"]


async def test_a_session_keeps_its_prefix_and_is_released_when_there_are_too_many(tiny_served: Path) -> None:
    async with running(tiny_served, ServeSettings(max_sessions=2)) as found:
        long_prompt = [number % 400 + 5 for number in range(600)]
        body = {"prompt": long_prompt, "max_tokens": 1}
        for name in ("a", "a", "b", "c"):
            assert (await post(found, "/v1/completions", body, headers={"X-Session-ID": name}))[0] == 200
        assert found.engine.load().num_prefill_tokens < 2 * len(long_prompt), "the prompt was computed once"
        assert len(found.service.sessions) == 2
        status, _ = await post(found, "/v1/completions", body, headers={"X-Session-ID": "x" * 300})
        assert status == 400


async def test_callers_with_different_keys_have_no_session_in_common(tiny_served: Path) -> None:
    """One of them leaves in the middle of its answer: the engine ends its session, and not that of the other."""
    async with running(tiny_served, ServeSettings(keys=frozenset({"one", "two"}))) as found:
        one, two = ({"Authorization": f"Bearer {key}", "X-Session-ID": "same"} for key in ("one", "two"))
        body = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "temperature": 0}
        async with found.http.post(f"{found.root}/v1/completions", json=LONG, headers=two) as leaving:
            await leaving.content.readline()
            staying = asyncio.ensure_future(post(found, "/v1/completions", body, headers=one))
            await until(lambda: found.engine.load().num_running == 2)
            leaving.close()
        status, document = await staying
        assert status == 200 and document["usage"]["completion_tokens"] == 200
        assert document["choices"][0]["finish_reason"] == "length"
        await until(lambda: len(found.service.sessions) == 2)


async def test_ids_in_ids_out_as_verifiers_asks_for_them(tiny_served: Path) -> None:
    async with running(tiny_served) as found:
        sampling = {"max_tokens": 6, "logprobs": 1, "seed": 3, "skip_special_tokens": False}
        status, document = await post(
            found, "/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": sampling}
        )
        choice = document["choices"][0]
        assert status == 200 and len(choice["token_ids"]) == 6
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == [
            f"token_id:{token_id}" for token_id in choice["token_ids"]
        ]
        assert choice["token_ids"] == await ids_of(found, temperature=1, seed=3, max_tokens=6)


async def test_an_engine_that_failed_is_reported_to_callers_and_to_the_operator(tiny_served: Path) -> None:
    async with running(tiny_served) as found:

        def fail() -> None:
            raise RuntimeError("out of something")

        assert isinstance(found.engine, EmbeddedEngine)
        async with found.http.post(f"{found.root}/v1/completions", json=LONG) as response:
            await response.content.readline()
            found.engine._post(fail)
            text = await response.text()
        assert "out of something" in text and text.rstrip().endswith("[DONE]")
        status, document = await post(found, "/v1/completions", {"prompt": "x"})
        assert status == 503 and document["error"]["code"] == "engine_failed"
        async with found.http.get(f"{found.root}/health") as response:
            assert response.status == 503
        assert found.service.admission.num_in_flight == 0


async def test_metrics_are_vllms(tiny_served: Path) -> None:
    from rstar2.engine.vllm.metrics import load_of

    async with running(tiny_served) as found:
        await ids_of(found)
        async with found.http.get(f"{found.root}/metrics") as response:
            page = await response.text()
        load = load_of(page)
        assert (load.num_blocks, load.block_size) == (found.engine.load().num_blocks, found.engine.load().block_size)
        assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 8' in page
        assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 1' in page


def write_adapter(base: Path, target: Path, seed: int) -> Any:
    """An adapter of random numbers, and the model with it merged in."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_()
    adapted.save_pretrained(target)
    return adapted.merge_and_unload()


def greedy(model: Any) -> list[int]:
    ids = model.generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=None)
    found: list[int] = ids[0, len(PROMPT) :].tolist()
    return found


@pytest.mark.parametrize("apart", [False, True])
async def test_adapters_are_loaded_named_swapped_and_the_model_is_restored_to_the_bit(
    tiny_served: Path, tmp_path: Path, apart: bool
) -> None:
    merged = [write_adapter(tiny_served, tmp_path / f"v{number}", number) for number in range(2)]
    async with running(tiny_served, ServeSettings(allows_updates=True), apart=apart) as found:
        before = {name: tensor.clone() for name, tensor in found.engine.named_weights().items()}
        base = await ids_of(found, ignore_eos=True)
        for number in range(2):
            body = {"lora_name": f"v{number}", "lora_path": str(tmp_path / f"v{number}")}
            assert (await post(found, "/v1/load_lora_adapter", body))[0] == 200
        status, document = await post(found, "/v1/load_lora_adapter", body)
        assert status == 400 and "loaded already" in document["error"]["message"]
        names = ["v0", "v1", "tiny", "v0"] * 4
        answers = await asyncio.gather(*(ids_of(found, name, ignore_eos=True) for name in names))
        expected = {"v0": greedy(merged[0]), "v1": greedy(merged[1]), "tiny": base}
        assert [expected[name] for name in names] == answers and len(set(map(tuple, expected.values()))) == 3
        assert await ids_of(found, "tiny", ignore_eos=True) == base
        assert all(torch.equal(before[name], tensor) for name, tensor in found.engine.named_weights().items())
        async with found.http.get(f"{found.root}/v1/models") as response:
            cards = {card["id"]: card["parent"] for card in (await response.json())["data"]}
        assert cards == {"tiny": None, "v0": "tiny", "v1": "tiny"}
        assert (await post(found, "/v1/unload_lora_adapter", {"lora_name": "v0"}))[0] == 200
        assert (await post(found, "/v1/completions", {"model": "v0", "prompt": "x"}))[0] == 404


async def test_a_request_for_other_weights_that_leaves_holds_nobody_up(tiny_served: Path, tmp_path: Path) -> None:
    write_adapter(tiny_served, tmp_path / "v0", 0)
    async with running(tiny_served, ServeSettings(allows_updates=True)) as found:
        body = {"lora_name": "v0", "lora_path": str(tmp_path / "v0")}
        assert (await post(found, "/v1/load_lora_adapter", body))[0] == 200
        async with found.http.post(f"{found.root}/v1/completions", json=LONG) as held:
            await held.content.readline()
            leaving = asyncio.ensure_future(ids_of(found, "v0"))
            await until(lambda: found.service.gate.num_waiting == 1)
            behind = asyncio.ensure_future(ids_of(found))
            await until(lambda: found.service.gate.num_waiting == 2)
            leaving.cancel()
            assert await behind and found.service.gate.active == ""
            held.close()


async def test_a_folder_that_is_no_adapter_of_this_model_is_named(tiny_served: Path, tmp_path: Path) -> None:
    async with running(tiny_served, ServeSettings(allows_updates=True)) as found:
        status, document = await post(
            found, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": str(tmp_path / "nowhere")}
        )
        assert status == 400 and "adapter_config.json" in document["error"]["message"]
        for path, body in (
            ("/update_weights", {"update_info": {"weights_path": str(tmp_path)}}),
            ("/update_weights", {"update_info": {"names": ["x"]}}),
            ("/collective_rpc", {"method": "save"}),
            ("/pause?mode=never", None),
        ):
            status, document = await post(found, path, body)
            assert status == 400 and document["error"]["message"], path
        assert (await post(found, "/init_weight_transfer_engine", {"init_info": {}}))[0] == 501


async def test_an_update_whose_trainer_was_lost_can_be_finished(tiny_served: Path) -> None:
    async with running(tiny_served, ServeSettings(allows_updates=True)) as found:
        assert (await post(found, "/pause?mode=keep"))[0] == 200
        assert (await post(found, "/start_weight_update", {}))[0] == 200
        status, document = await post(found, "/start_weight_update", {})
        assert status == 409 and "finish it first" in document["error"]["message"]
        for path in ("/finish_weight_update", "/resume", "/start_weight_update", "/finish_weight_update"):
            assert (await post(found, path, {}))[0] == 200, path
        assert await ids_of(found)


async def test_updates_need_the_operators_consent(tiny_served: Path) -> None:
    async with running(tiny_served) as found:
        assert (await post(found, "/pause"))[0] == 404
        assert (await post(found, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "b"}))[0] == 404


@pytest.mark.parametrize(
    ("mode", "apart"), [("keep", False), ("wait", False), ("abort", False), ("keep", True), ("abort", True)]
)
async def test_weights_are_updated_while_paused(tiny_served: Path, tmp_path: Path, mode: str, apart: bool) -> None:
    other = tiny_model(tmp_path / "other")
    model = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32)
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(other)
    options = EmbeddedOptions(max_running=4, kv_cache_tokens=1 << 14)
    async with running(tiny_served, ServeSettings(allows_updates=True), options, apart=apart) as found:
        old = await ids_of(found, ignore_eos=True)
        asking = asyncio.ensure_future(post(found, "/v1/completions", {**LONG, "stream": False, "max_tokens": 300}))
        await until(lambda: found.engine.load().num_generated_tokens > 8)
        assert (await post(found, f"/pause?mode={mode}"))[0] == 200
        async with found.http.get(f"{found.root}/is_paused") as response:
            assert (await response.json())["is_paused"]
        frozen = found.engine.load().num_generated_tokens
        waiting = asyncio.ensure_future(ids_of(found, ignore_eos=True))
        assert (await post(found, "/start_weight_update", {}))[0] == 200
        update = {"update_info": {"weights_path": str(other)}}
        assert (await post(found, "/update_weights", update))[0] == 200
        assert (await post(found, "/finish_weight_update", {}))[0] == 200
        assert found.engine.load().num_generated_tokens == frozen and not waiting.done()
        assert (await post(found, "/resume"))[0] == 200
        assert await waiting == greedy(model) != old
        status, document = await asking
        assert status == 200
        assert document["choices"][0]["finish_reason"] == ("abort" if mode == "abort" else "length")
