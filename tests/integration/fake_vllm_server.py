"""A vLLM server on loopback that says what the test wants, with the routes that vLLM has beside OpenAI's."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from fake_openai_server import FakeServer
from safetensors import safe_open

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} 5.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 5.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:num_preemptions_total{{engine="0",model_name="m"}} 7.0
vllm:num_preemptions_created{{engine="0",model_name="m"}} 1.7947290241501522e+09
vllm:prompt_tokens_total{{engine="0",model_name="m"}} 893.0
vllm:prompt_tokens_cached_total{{engine="0",model_name="m"}} 576.0
vllm:generation_tokens_total{{engine="0",model_name="m"}} 2e+03
vllm:cache_config_info{{block_size="32",cache_dtype="a \\"b\\"",engine="0",num_gpu_blocks="40"}} 1.0
"""


@dataclass
class FakeVllm(FakeServer):
    reports_sampled: bool = True
    """--logprobs-mode processed_logprobs."""
    is_in_dev_mode: bool = True
    is_tied: bool = False
    device: str = "cpu"
    num_running: int = 0
    hangs: bool = False
    """After the first token nothing comes."""
    fails_to_reload: bool = False
    num_left_requests: int = 0
    control_calls: list[str] = field(default_factory=list)
    reloaded_names: set[str] = field(default_factory=set)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        super().add_routes(router)
        router.add_get("/metrics", self.metrics)
        if self.is_in_dev_mode:
            router.add_get("/server_info", self.server_info)
            router.add_post("/weight_checker", self.weight_checker)
            router.add_post("/pause", self.note_control)
            router.add_post("/resume", self.note_control)
            router.add_post("/reset_prefix_cache", self.note_control)
            router.add_post("/collective_rpc", self.reload)

    async def list_models(self, request: web.Request) -> web.Response:
        answer = await super().list_models(request)
        if answer.status != 200:
            return answer
        return web.json_response({"data": [{"id": name, "max_model_len": 2048} for name in self.models]})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=METRICS.format(running=float(self.num_running)))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self._is_authorized(request) and (body.get("top_k"), body["max_tokens"]) == (1, 1):
            value = 0.0 if self.reports_sampled else -0.7
            choice = {"token_ids": [9], "logprobs": {"token_logprobs": [value]}, "finish_reason": "length"}
            text = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
            return web.Response(text=text, content_type="text/event-stream")
        return await super().completions(request)

    async def _stream(self, request: web.Request, choices: list[dict[str, object]]) -> web.StreamResponse:
        if (await request.json())["logprobs"] is None:
            choices = [choice | {"logprobs": None} for choice in choices]
        if not self.hangs:
            return await super()._stream(request, choices)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"data: {json.dumps({'choices': choices[:1]})}\n\n".encode())
        self.num_running += 1
        try:
            while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        finally:
            self.num_running -= 1
            self.num_left_requests += 1
        return response

    async def server_info(self, _: web.Request) -> web.Response:
        return web.json_response({"vllm_config": {"device_config": {"device": self.device}}})

    async def weight_checker(self, _: web.Request) -> web.Response:
        names = ["dp0:tp0:model.embed_tokens.weight"] + ["dp0:tp0:lm_head.weight"] * (not self.is_tied)
        return web.json_response({"checksums": dict.fromkeys(names, "e3b0")})

    async def note_control(self, request: web.Request) -> web.Response:
        self.control_calls.append(request.path_qs)
        return web.json_response({"success": True})

    async def reload(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.control_calls.append(body["method"])
        if self.fails_to_reload:
            return web.json_response({"error": {"message": "Worker failed"}}, status=500)
        self.reloaded_names = _tensor_names(Path(body["kwargs"]["weights_path"]))
        return web.json_response({"results": [None]})


def _tensor_names(folder: Path) -> set[str]:
    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            names |= set(weights.keys())
    return names
