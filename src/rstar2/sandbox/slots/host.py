"""What this process owns of the sandbox: the isolation in force, the templates, the memory groups."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from rstar2.errors import UserError
from rstar2.sandbox.isolation import guarantees
from rstar2.sandbox.isolation.cgroup import ServiceGroup, SlotGroup
from rstar2.sandbox.isolation.confine import Layers
from rstar2.sandbox.isolation.guarantees import Guarantee
from rstar2.sandbox.slots.templates import OwnTemplates, TemplateConfig, TemplateSource


@dataclass(frozen=True, slots=True)
class HostConfig:
    allow_weak_isolation: bool = False
    isolate: bool = True
    """False only to measure what isolation costs."""
    fast: bool = True
    warm: bool = True
    spare_template: bool = False
    scratch_bytes: int = guarantees.SCRATCH_BYTES


def decide_layers(config: HostConfig) -> Layers:
    """What will be put on here. UserError below the minimum, unless the caller accepts that."""
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
    if not config.allow_weak_isolation:
        _refuse_below_minimum(guarantees.describe(capabilities))
    return guarantees.choose_layers(capabilities, scratch_bytes=config.scratch_bytes)


def make_service_group(config: HostConfig) -> ServiceGroup | None:
    hierarchy = guarantees.detect().memory_groups
    return ServiceGroup(hierarchy) if config.isolate and hierarchy is not None else None


class Host:
    """Owns its templates and memory groups, or works with those that a supervisor lends it."""

    def __init__(
        self,
        config: HostConfig,
        *,
        lent_templates: TemplateSource | None = None,
        lent_group: ServiceGroup | None = None,
    ) -> None:
        self.guarantees = guarantees.probe()
        self.layers = decide_layers(config)
        self._owns_group = lent_templates is None
        self._service_group = make_service_group(config) if self._owns_group else lent_group
        self.templates: TemplateSource = lent_templates or OwnTemplates(
            TemplateConfig(
                layers=self.layers,
                fast=config.fast,
                warm=config.warm,
                service_group=self._service_group.path if self._service_group else None,
            ),
            spare=config.spare_template,
        )
        self.on_template_ready: Callable[[], None] = lambda: None

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
        """False while there is no template; `on_template_ready` is called when there is one again."""
        template = self.templates.current
        if template is None:
            return False
        uid = guarantees.slot_uid(os.getpid(), number) if self.layers.distinct_uid else -1
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


def _refuse_below_minimum(guarantees: list[Guarantee]) -> None:
    lacking = [guarantee for guarantee in guarantees if guarantee.required and not guarantee.provided]
    if lacking:
        lines = "".join(f"\n  {guarantee.name}: {guarantee.fix}" for guarantee in lacking)
        raise UserError(
            f"this machine cannot give what the sandbox promises:{lines}\n"
            "To run below that minimum, with code that you trust, pass --allow-weak-isolation."
        )
