"""The routes for trainers: pause, resume, adapters, weights. They have vLLM's paths, as TRL's clients call them."""

import asyncio
from typing import Any

from aiohttp import web

from rstar2.engine.protocol import UpdatableEngine
from rstar2.errors import UserError
from rstar2.serve.bodies import COLLECTIVE_RPC, LOAD_ADAPTER, UNLOAD_ADAPTER, UPDATE_WEIGHTS
from rstar2.serve.errors import OpenAIError, unsupported
from rstar2.serve.routing import parsed_body
from rstar2.serve.service import ModelService

PAUSE_MODES = ("abort", "wait", "keep")
MAX_LORAS = 1 << 10
MAX_LORA_RANK = 1 << 10
_NO_TRANSFER = (
    "weights are not received over NCCL here: write them as safetensors to a folder that the server can read, and name "
    'it as {"update_info": {"weights_path": FOLDER}}, or load a LoRA adapter with /v1/load_lora_adapter'
)


class ControlApi:
    def __init__(self, service: ModelService) -> None:
        self._service = service
        self._is_updating = False

    async def pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise UserError(f"mode: it must be one of {', '.join(PAUSE_MODES)}, not {mode!r}")
        async with asyncio.timeout(self._service.settings.request_timeout_s):
            await self._service.gate.pause(mode, self._service.cancel_all)
        return web.json_response({"status": "paused"})

    async def resume(self, _: web.Request) -> web.Response:
        await self._service.gate.resume()
        return web.json_response({"status": "resumed"})

    async def is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": self._service.gate.is_paused})

    async def load_adapter(self, request: web.Request) -> web.Response:
        body = await parsed_body(self._service, request, LOAD_ADAPTER)
        if body.lora_name == self._service.model.name:
            raise UserError(f"lora_name: {body.lora_name!r} is the name of the model itself; choose another")
        await self._service.gate.load_adapter(body.lora_name, body.lora_path, replaces=body.load_inplace)
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload_adapter(self, request: web.Request) -> web.Response:
        body = await parsed_body(self._service, request, UNLOAD_ADAPTER)
        await self._service.gate.unload_adapter(body.lora_name)
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def start_update(self, _: web.Request) -> web.Response:
        if self._is_updating:
            raise OpenAIError(409, "a weight update has begun already: finish it first")
        self._is_updating = True
        return web.json_response({"message": "Weight update started"})

    async def update_weights(self, request: web.Request) -> web.Response:
        folder = (await parsed_body(self._service, request, UPDATE_WEIGHTS)).update_info.weights_path
        if folder is None:
            raise unsupported("update_info", _NO_TRANSFER)
        await self._service.gate.update_from(folder)
        return web.json_response({"message": "Weights updated"})

    async def finish_update(self, _: web.Request) -> web.Response:
        if not self._is_updating:
            raise OpenAIError(409, "no weight update has begun: call /start_weight_update first")
        self._is_updating = False
        return web.json_response({"message": "Weight update finished"})

    async def init_transfer(self, _: web.Request) -> web.Response:
        raise OpenAIError(501, _NO_TRANSFER, code="unsupported")

    async def collective_rpc(self, request: web.Request) -> web.Response:
        body = await parsed_body(self._service, request, COLLECTIVE_RPC)
        match body:
            case {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}:
                await self._service.gate.update_from(folder)
            case _:
                raise unsupported("method", "only reload_weights with kwargs.weights_path is known here")
        return web.json_response({"results": [None]})

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        engine = self._service.model.engine
        if not isinstance(engine, UpdatableEngine):
            raise OpenAIError(501, "the prefix cache of this engine is not ours to drop")
        await engine.drop_prefixes()
        return web.json_response({"success": True})

    async def server_info(self, _: web.Request) -> web.Response:
        """The configuration that TRL's clients read."""
        model = self._service.model
        lora: dict[str, Any] | None = None
        dtype: str | None = None
        if isinstance(model.engine, UpdatableEngine):
            lora = {"max_lora_rank": MAX_LORA_RANK, "max_loras": MAX_LORAS}
            dtype = str(next(iter(model.engine.named_weights().values())).dtype)
        config = {
            "model_config": {"model": model.name, "max_model_len": model.max_model_len, "dtype": dtype},
            "lora_config": lora,
            "weight_transfer_config": None,
            "parallel_config": {"data_parallel_size": 1, "tensor_parallel_size": 1},
        }
        return web.json_response({"vllm_config": config})

    async def world_size(self, _: web.Request) -> web.Response:
        return web.json_response({"world_size": 1})
