"""The client of an OpenEnv server: schemas and tasks over HTTP, one WebSocket per episode.

It is our own, because the openenv package includes a web framework and a user interface that a client does not need.
Every message of the server is untrusted, and is checked before use.
"""

import asyncio
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from rstar2.errors import InfrastructureError, UserError

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
CLOSE_S = 5.0
"""Seconds that the server gets to acknowledge the end of a session."""
DROP_S = 0.1
"""Seconds that it gets after a failure, while a caller waits for the error."""
TASKS_PER_REQUEST = 1000
FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 1.0


class ServerRefusalError(InfrastructureError):
    """The server answered with an error. `code` is OpenEnv's: VALIDATION_ERROR, EXECUTION_ERROR, …"""

    def __init__(self, message: str, code: str, details: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The server's answer to a reset or a step."""

    observation: Mapping[str, Any]
    reward: float | None
    done: bool


@dataclass(slots=True)
class OpenEnvSession:
    """One episode on the server. After a failure the connection is closed, because a late answer would be taken for the
    answer to the next request."""

    url: str
    _http: aiohttp.ClientSession
    _socket: aiohttp.ClientWebSocketResponse | None = None
    _is_lost: bool = False

    async def reset(self, arguments: Mapping[str, Any], patience_s: float) -> StepAnswer:
        """Begin the episode. A server without room for another session is retried for `patience_s`: it may still be
        closing an earlier one."""
        give_up, wait_s = time.monotonic() + patience_s, FIRST_RETRY_S
        while True:
            try:
                return _step_of(await self._ask("reset", arguments))
            except ServerRefusalError as error:
                if error.code != "CAPACITY_REACHED" or time.monotonic() + wait_s > give_up:
                    raise
            await self._drop()
            self._is_lost = False
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_RETRY_S)

    async def step(self, action: Mapping[str, Any]) -> StepAnswer:
        return _step_of(await self._ask("step", action))

    async def close(self) -> None:
        socket, self._socket, self._is_lost = self._socket, None, True
        if socket is None or socket.closed:
            return
        with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await socket.close()

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data of the answer to a request. A session has one request at a time."""
        if self._is_lost:
            raise InfrastructureError("the session is closed")
        try:
            return await self._exchange({"type": kind, "data": data})
        except ServerRefusalError:
            raise
        except BaseException:
            await self._drop()
            raise

    async def _exchange(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            if self._socket is None:
                self._socket = await self._http.ws_connect(f"{self.url}/ws", max_msg_size=MAX_MESSAGE_BYTES)
            # A server that refuses the session sends a message and closes; read it even if ours cannot be sent.
            with suppress(ConnectionError):
                await self._socket.send_json(request)
            message = await self._socket.receive()
        except (aiohttp.ClientError, OSError) as error:
            raise InfrastructureError(f"{type(error).__name__}: {error}") from error
        if message.type is aiohttp.WSMsgType.TEXT:
            return _data_of(message.data)
        if message.type is aiohttp.WSMsgType.ERROR:
            raise InfrastructureError(str(message.data))
        raise InfrastructureError("the server closed the connection")

    async def _drop(self) -> None:
        """Drop the connection without waiting for further messages."""
        socket, self._socket, self._is_lost = self._socket, None, True
        if socket is not None and not socket.closed:
            with suppress(Exception):
                async with asyncio.timeout(DROP_S):
                    await socket.close()


def _data_of(text: str) -> Mapping[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InfrastructureError(f"the server sent no JSON: {text[:80]!r}") from error
    if not isinstance(message, dict) or not isinstance(message.get("data"), dict):
        raise InfrastructureError(f"the server sent no message of OpenEnv's: {text[:80]!r}")
    data: dict[str, Any] = message["data"]
    if message.get("type") == "error":
        code = str(data.get("code", "UNKNOWN"))
        raise ServerRefusalError(f"{code}: {str(data.get('message', ''))[:500]}", code, data)
    if message.get("type") != "observation":
        raise InfrastructureError(f"the server sent {str(message.get('type'))[:40]!r} and no observation")
    return data


def _step_of(data: Mapping[str, Any]) -> StepAnswer:
    observation, reward, done = data.get("observation"), data.get("reward"), data.get("done", False)
    if not isinstance(observation, dict):
        raise InfrastructureError(f"the observation is of type {type(observation).__name__}, not an object")
    if reward is not None and not _is_finite(reward):
        raise InfrastructureError(f"the reward is {str(reward)[:40]!r}, not a finite number")
    if not isinstance(done, bool):
        raise InfrastructureError(f"done is {str(done)[:40]!r}, not true or false")
    return StepAnswer(observation, None if reward is None else float(reward), done)


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def read_tasks(url: str, split: str | None, deadline_s: float) -> Iterator[Mapping[str, Any]]:
    """Read the tasks of a split as rows: the task's fields, its split and its index, which select it in a reset."""
    deadline = time.monotonic() + deadline_s
    names = _fetch(url, "list_environments", None, deadline)
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise InfrastructureError(f"{url}/list_environments names no environment")
    name = names[0]
    split = split or _first_split(url, _fetch(url, f"{name}/splits", None, deadline))
    count = _fetch(url, f"{name}/num_tasks", {"split": split}, deadline)
    num_tasks = count.get("num_tasks") if isinstance(count, dict) else None
    if not isinstance(num_tasks, int) or num_tasks < 0:
        raise InfrastructureError(f"{url}/{name}/num_tasks does not say how many tasks split {split!r} has")
    for start in range(0, num_tasks, TASKS_PER_REQUEST):
        stop = min(start + TASKS_PER_REQUEST, num_tasks)
        page = _fetch(url, f"{name}/task_range", {"split": split, "start": start, "stop": stop}, deadline)
        tasks = page.get("tasks") if isinstance(page, dict) else None
        if not isinstance(tasks, list) or len(tasks) != stop - start:
            raise InfrastructureError(f"{url}/{name}/task_range did not send the tasks {start} to {stop}")
        for index, task in enumerate(tasks, start):
            yield {**(task if isinstance(task, dict) else {"task": task}), "split": split, "index": index}


def _first_split(url: str, splits: Any) -> str:
    """The split for training, or else the first."""
    named = (
        [entry for entry in splits if isinstance(entry, dict) and entry.get("name")] if isinstance(splits, list) else []
    )
    if not named:
        raise UserError(f"environment.source: {url} has no splits of tasks: name a data set in [data]")
    return str(next((entry for entry in named if entry.get("type") == "train"), named[0])["name"])


def _fetch(url: str, path: str, body: Mapping[str, Any] | None, deadline: float) -> Any:
    """Fetch tasks. UserError if the server has none, or no such split."""
    request = urllib.request.Request(
        f"{url}/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=max(0.1, deadline - time.monotonic())) as response:
            text = response.read(MAX_MESSAGE_BYTES + 1)
        if len(text) > MAX_MESSAGE_BYTES:
            raise InfrastructureError(f"{url}/{path} sent more than {MAX_MESSAGE_BYTES} bytes")
        return json.loads(text)
    except urllib.error.HTTPError as error:
        if error.code in (404, 501):
            raise UserError(
                f"environment.source: the server at {url} lists no tasks ({path}: {error.code}): name a data set in "
                "[data]; each of its rows becomes the arguments of a reset"
            ) from error
        raise InfrastructureError(f"{url}/{path}: {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"{url}/{path}: {error}") from error
