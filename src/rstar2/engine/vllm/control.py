"""The routes of a vLLM server besides those of OpenAI: its metrics, and the control of generation and weights.

The control routes exist only if the server was started with VLLM_SERVER_DEV_MODE=1.
"""

import json
from pathlib import Path
from typing import Any

import aiohttp

from rstar2.engine.openai import CONNECT_S, connector, error_message, headers, refused_key, unreachable
from rstar2.errors import InfrastructureError, UserError

METRICS_S = 10.0
CONTROL_S = 600.0
"""Timeout of a control request: reading tens of gigabytes of weights from a shared disk takes minutes."""


class VllmControl:
    """Satisfies `WeightControl`. `root` is the address without its /v1."""

    def __init__(self, root: str, api_key: str | None = None) -> None:
        self._root = root
        self._headers = headers(api_key)
        self._http: aiohttp.ClientSession | None = None

    async def metrics(self) -> str:
        return (await self._ask("GET", "/metrics", METRICS_S)).decode()

    async def models(self) -> list[dict[str, Any]]:
        return list(_json(await self._ask("GET", "/v1/models", METRICS_S), "/v1/models")["data"])

    async def pause(self) -> None:
        await self._ask("POST", "/pause?mode=keep", CONTROL_S)

    async def resume(self) -> None:
        await self._ask("POST", "/resume", CONTROL_S)

    async def reload(self, folder: Path) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._ask("POST", "/collective_rpc", CONTROL_S, body)

    async def forget_prefixes(self) -> None:
        # The cache is not reset while running requests hold blocks: they are recomputed.
        path = "/reset_prefix_cache?reset_running_requests=true"
        answer = await self._ask("POST", path, CONTROL_S)
        # Before 0.32 the answer has no body.
        if answer and not _json(answer, path)["success"]:
            raise InfrastructureError(f"the vLLM at {self._root} did not drop its prefix cache")

    async def keeps_old_head(self) -> bool:
        # The first answer takes seconds: the server inspects its machine for it.
        path = "/server_info?config_format=json"
        config = _json(await self._ask("GET", path, CONTROL_S), path)["vllm_config"]
        if config["device_config"]["device"] != "cpu":
            return False
        path = "/weight_checker"
        checksums = _json(await self._ask("POST", path, CONTROL_S, {"action": "checksum"}), path)["checksums"]
        return not any(name.endswith("lm_head.weight") for name in checksums)

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def _ask(self, method: str, path: str, timeout_s: float, body: Any = None) -> bytes:
        if self._http is None:
            self._http = aiohttp.ClientSession(connector=connector(), headers=self._headers)
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        try:
            async with self._http.request(method, self._root + path, json=body, timeout=timeout) as response:
                data = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise unreachable(self._root, error) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or f"no answer in {timeout_s:g} s"
            raise InfrastructureError(f"the vLLM at {self._root} failed at {path} ({reason})") from None
        if response.status == 200:
            return data
        said = error_message(data)
        if response.status in (401, 403):
            raise refused_key(self._root, response.status, said)
        if response.status == 404:
            raise _missing(self._root, path)
        raise InfrastructureError(f"the vLLM at {self._root} failed at {path} ({response.status}: {said})")


def _missing(root: str, path: str) -> UserError:
    if path in ("/metrics", "/v1/models"):
        return UserError(f"there is no {path} at {root}, so it is no vLLM server: check --base-url")
    return UserError(f"the vLLM at {root} has no {path}: start it with VLLM_SERVER_DEV_MODE=1 to update its weights")


def _json(data: bytes, path: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise UserError(f"what answers at {path} is no vLLM server: check --base-url") from None
