"""Makes slots: decides which isolation applies, and owns the templates that fork slots and their memory groups."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from rstar2.errors import UserError
from rstar2.sandbox.isolation import guarantees, packages, uids
from rstar2.sandbox.isolation.cgroup import ServiceGroup, SlotGroup
from rstar2.sandbox.isolation.confine import Layers
from rstar2.sandbox.slots.template_process import TemplateConfig
from rstar2.sandbox.slots.templates import OwnTemplates, TemplateSource


@dataclass(frozen=True, slots=True)
class SlotConfig:
    allow_weak_isolation: bool = False
    isolate: bool = True
    """False only to measure the cost of isolation."""
    fast: bool = True
    """Whether to use the C extension if it is built."""
    warm: bool = True
    """Whether to load the libraries before the first program."""
    scratch_bytes: int = guarantees.SCRATCH_BYTES
    packages: tuple[str, ...] = ()
    """Installed packages that programs may import, with their dependencies, besides the promised ones."""


def decide_layers(config: SlotConfig) -> Layers:
    """Decide the isolation for this machine. UserError if it is below the minimum, unless the caller accepts that."""
    capabilities = guarantees.detect()
    if not capabilities.is_linux:
        raise UserError(
            "the isolated sandbox needs Linux; on this system use the subprocess mode, which isolates nothing: "
            "`--unsafe`, or UnsafeExecutor in Python"
        )
    if not config.isolate:
        return Layers(
            namespaces=False,
            user_namespace=False,
            seccomp=False,
            distinct_uid=False,
            scratch="/tmp",
            scratch_bytes=0,
            num_scratch_files=0,
        )
    lacking = [row for row in guarantees.describe(capabilities) if row.required and not row.provided]
    if lacking and not config.allow_weak_isolation:
        lines = "".join(f"\n  {row.name}: {row.fix}" for row in lacking)
        raise UserError(
            f"this machine cannot give what the sandbox promises:{lines}\n"
            "To run below that minimum, with code that you trust, pass --allow-weak-isolation."
        )
    packages.check(config.packages)
    layers = guarantees.choose_layers(capabilities, scratch_bytes=config.scratch_bytes)
    return replace(layers, packages=tuple(config.packages))


def make_service_group(config: SlotConfig) -> ServiceGroup | None:
    hierarchy = guarantees.detect().memory_groups
    return ServiceGroup(hierarchy) if config.isolate and hierarchy is not None else None


def template_config(config: SlotConfig, layers: Layers, group: ServiceGroup | None) -> TemplateConfig:
    return TemplateConfig(layers, config.fast, config.warm, str(group.path) if group else None)


class SlotFactory:
    """Owns its templates and memory groups, or uses those that a supervisor lends it."""

    def __init__(
        self,
        config: SlotConfig,
        *,
        lent_templates: TemplateSource | None = None,
        lent_group: ServiceGroup | None = None,
    ) -> None:
        self.guarantees = guarantees.probe()
        self.layers = decide_layers(config)
        self._owns_group = lent_templates is None
        self._service_group = make_service_group(config) if self._owns_group else lent_group
        self.templates: TemplateSource = lent_templates or OwnTemplates(
            template_config(config, self.layers, self._service_group)
        )
        self.on_template_ready: Callable[[], None] = lambda: None
        self.can_renice = self.layers.distinct_uid or guarantees.processes_can_be_reniced()
        """Whether a lowered priority can be raised again."""

    async def start(self) -> None:
        self.templates.on_ready = lambda: self.on_template_ready()
        try:
            await self.templates.start()
        except BaseException:
            await self.close()
            raise

    def make_memory_group(self, name: str) -> SlotGroup | None:
        return self._service_group.make_slot(f"{os.getpid()}-{name}") if self._service_group else None

    def retire_memory_group(self, group: SlotGroup) -> None:
        assert self._service_group is not None
        self._service_group.retire_slot(group)

    def fork_slot(
        self,
        kind: int,
        number: int,
        their_end: socket.socket,
        group: SlotGroup | None,
        on_answer: Callable[[int], None],
    ) -> bool:
        """Request a slot. False while there is no template; `on_template_ready` is called when there is one again."""
        template = self.templates.current
        if template is None:
            return False
        uid = uids.uid_of(uids.leased_block(), number) if self.layers.distinct_uid else -1
        fds = [their_end.fileno()] if group is None else [their_end.fileno(), group.procs_fd]
        try:
            template.fork_slot(kind, uid, fds, on_answer)
        except OSError:
            return False
        return True

    async def close(self) -> None:
        await self.templates.close()
        if self._service_group is not None and self._owns_group:
            self._service_group.close()
        self._service_group = None
