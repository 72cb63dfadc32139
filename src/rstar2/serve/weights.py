"""Decides which weights the engine runs (the model's, or the model's with one adapter merged in), and when they may
change.

The engine runs one set of weights at a time. A request leases the weights that it names; meanwhile requests for other
weights wait. When the last lease ends, the engine switches to the weights of the longest waiting request, and all
waiting requests for these weights start. So no answer mixes two adapters, and callers of several adapters take turns. A
switch drops the prefix cache.

A paused gate grants nothing. Weights are written only while the engine is paused.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2.engine.protocol import Engine, UpdatableEngine
from rstar2.errors import UserError
from rstar2.models import AdaptedLayer, read_adapter
from rstar2.serve.errors import OpenAIError

if TYPE_CHECKING:
    from torch import Tensor

MAX_SHOWN_CHARS = 200
BASE = ""
"""The name of the model's own weights at the gate."""


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    path: str
    layers: Mapping[str, AdaptedLayer]


class WeightGate:
    """Leases weights to requests, one set at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine if isinstance(engine, UpdatableEngine) else None
        self.adapters: dict[str, Adapter] = {}
        self._original: dict[str, Tensor] = {}
        """The original values of the parameters that the merged adapter changed."""
        self._active = BASE
        self._num_leases = 0
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._writing = asyncio.Lock()
        self._pause: AsyncExitStack | None = None
        self._is_closed = False
        self._num_pausing = 0
        """The number of pauses that have begun and not ended."""
        self._switching: asyncio.Task[None] | None = None

    @property
    def is_paused(self) -> bool:
        return self._is_closed

    @property
    def active(self) -> str:
        return self._active

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def leased(self, name: str) -> AsyncIterator[None]:
        """Lease weights: the engine runs them during the block."""
        if self._is_closed or self._waiting or self._switching or name != self._active:
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (name, granted)
            self._waiting.append(entry)
            self._advance()
            try:
                await granted
            except BaseException:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                    self._advance()
                elif granted.done() and not granted.cancelled() and granted.exception() is None:
                    self._give_back()
                raise
        else:
            self._take()
        try:
            yield
        finally:
            self._give_back()

    def _take(self) -> None:
        self._num_leases += 1
        self._idle.clear()

    def _give_back(self) -> None:
        self._num_leases -= 1
        if not self._num_leases:
            self._idle.set()
            self._advance()

    def _advance(self) -> None:
        """Grant the leases that can be granted now; start a switch if the oldest request needs other weights."""
        while self._waiting and not self._is_closed and self._switching is None:
            name = self._waiting[0][0]
            if name == self._active:
                self._grant(name)
            elif not self._num_leases:
                self._switching = asyncio.create_task(self._switch(name), name="switch weights")
            else:
                return

    def _grant(self, name: str) -> None:
        ready = [entry for entry in self._waiting if entry[0] == name]
        for entry in ready:
            self._waiting.remove(entry)
            if not entry[1].done():
                self._take()
                entry[1].set_result(None)

    async def _switch(self, name: str) -> None:
        failure: Exception | None = None
        try:
            async with self._writing:
                if name != BASE and name not in self.adapters:
                    raise OpenAIError(404, f"model: the adapter {name!r} was unloaded", param="model")
                await self._write(lambda: self._merge(name))
        except Exception as error:
            failure = error
        self._switching = None
        if failure is not None:
            for entry in [entry for entry in self._waiting if entry[0] == name]:
                self._waiting.remove(entry)
                if not entry[1].done():
                    entry[1].set_exception(failure)
        self._advance()

    async def _write(self, write: Callable[[], None]) -> None:
        engine = self._updatable()
        async with engine.paused_for_weight_sync(engine.policy_version + 1):
            await asyncio.to_thread(write)

    def _merge(self, name: str) -> None:
        """Restore the original parameters, then merge this adapter."""
        weights = self._updatable().named_weights()
        for parameter, original in self._original.items():
            weights[parameter].copy_(original)
        self._original.clear()
        self._active = BASE
        if name == BASE:
            return
        for parameter, layer in self.adapters[name].layers.items():
            self._original[parameter] = weights[parameter].clone()
            weights[parameter].copy_(layer.added_to(weights[parameter]))
        self._active = name

    def _updatable(self) -> UpdatableEngine:
        if self._engine is None:
            raise OpenAIError(501, "the weights of this engine cannot be changed here: use the embedded engine")
        return self._engine

    # The operations of a trainer.

    async def load_adapter(self, name: str, path: str, *, replaces: bool) -> None:
        """Load an adapter from a folder that peft wrote. It is merged when a request first names it."""
        weights = self._updatable().named_weights()
        if name in self.adapters and not replaces:
            raise OpenAIError(400, f"lora_name: {name!r} is loaded already; unload it first, or set load_inplace")
        layers = await asyncio.to_thread(lambda: read_adapter(_folder("lora_path", path)))
        for parameter, layer in layers.items():
            shape = (layer.up.shape[0], layer.down.shape[1])
            if parameter not in weights or weights[parameter].shape != shape:
                raise UserError(
                    f"lora_path: {path} adapts {parameter} of shape {shape}, which this model does not have"
                )
        async with self._writing:
            self.adapters[name] = Adapter(name, path, layers)
            if name == self._active:
                await self._write(lambda: self._merge(name))

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Running requests keep it; new ones get 404."""
        if name not in self.adapters:
            raise OpenAIError(404, f"lora_name: there is no adapter {name!r}", param="lora_name")
        async with self._writing:
            del self.adapters[name]

    async def pause(self, mode: str, cancel_all: Callable[[], Awaitable[None]]) -> None:
        """Stop generating tokens. `mode`: `keep` freezes running requests, `wait` lets them finish, `abort` ends them.
        New requests wait. A pause that fails is undone, unless another one holds or is still wanted."""
        engine = self._updatable()
        self._is_closed = True
        self._num_pausing += 1
        try:
            if mode == "abort":
                await cancel_all()
            if mode in ("abort", "wait"):
                await self._idle.wait()
            async with self._writing:
                if self._pause is None and self._is_closed:
                    pause = AsyncExitStack()
                    await pause.enter_async_context(engine.held())
                    self._pause = pause
        except BaseException:
            if self._pause is None and self._num_pausing == 1:
                await self.resume()
            raise
        finally:
            self._num_pausing -= 1

    async def resume(self) -> None:
        async with self._writing:
            pause, self._pause = self._pause, None
            if pause is not None:
                await pause.aclose()
            self._is_closed = False
        self._advance()

    async def update_from(self, folder: str) -> None:
        """Load the model's own weights from a checkpoint folder; an active adapter is merged into them again."""
        self._updatable()
        async with self._writing:
            tensors = await asyncio.to_thread(self._read_checkpoint, folder)

            def replace() -> None:
                active = self._active
                self._merge(BASE)
                weights = self._updatable().named_weights()
                for name, tensor in tensors.items():
                    weights[name].copy_(tensor)
                if active in self.adapters:
                    self._merge(active)

            await self._write(replace)

    def _read_checkpoint(self, folder: str) -> "dict[str, Tensor]":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        # Only regular files: opening a pipe would wait for its writer while holding the weights.
        files = sorted(file for file in _folder("weights_path", folder).glob("*.safetensors") if file.is_file())
        if not files:
            raise UserError(f"weights_path: there are no weights (*.safetensors) in {folder}")
        try:
            tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
        except (SafetensorError, OSError) as error:
            raise UserError(f"weights_path: {folder} cannot be read ({error})") from None
        weights = self._updatable().named_weights()
        if "lm_head.weight" not in weights:  # tied to the embedding
            tensors.pop("lm_head.weight", None)
        expected = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
            raise UserError(f"weights_path: the weights in {folder} are not those of the model that is served")
        return tensors


def _folder(field: str, path: str) -> Path:
    """The folder at a path; UserError if the path is invalid, such as too long or in an unknown home."""
    try:
        folder = Path(path).expanduser()
        folder.is_dir()
    except (OSError, RuntimeError, ValueError):
        raise UserError(f"{field}: the server cannot look at {path[:MAX_SHOWN_CHARS]!r}") from None
    return folder
