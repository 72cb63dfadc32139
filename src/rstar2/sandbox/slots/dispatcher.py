"""Runs stateless executions: a fair queue in front of slots, and the rules of which program runs when.

At most `num_young` executions younger than a tenth of a second run; slots move older ones to a low CPU share, and these
no longer count, up to `max_slots` in all. So sleepers and endless loops block neither the cores nor the queue. Every
wait has a deadline: in the queue the caller's, in a slot the wall limit and a grace period, after which the slot is
killed and the call is retried.

A slot whose program reaches its wall limit asks whether the program may continue (`starvation.py`). A program that was
starved at its low share is restarted at full share, as long as few are.

A resource that the machine refuses temporarily (descriptors, a memory group) is requested again at the next tick;
callers wait as for a free worker.
"""

import asyncio
import itertools
import math
import time
from dataclasses import dataclass, field, replace

from rstar2.errors import InfrastructureError
from rstar2.sandbox.execution import Execution, ExecutionStatus, OnOutput
from rstar2.sandbox.executor import Overloaded, Request
from rstar2.sandbox.fair_queue import FairQueue
from rstar2.sandbox.file_paths import check_files
from rstar2.sandbox.isolation.uids import STATELESS_NUMBERS
from rstar2.sandbox.output_relay import OutputRelay
from rstar2.sandbox.slots import wire
from rstar2.sandbox.slots.processes import LOW_NICE, renice, running_below
from rstar2.sandbox.slots.slot import MemoryAccount, SlotChannel, kill_quietly, socket_pair
from rstar2.sandbox.slots.slot_factory import SlotFactory
from rstar2.sandbox.slots.starvation import WallClock, tasks_below
from rstar2.sandbox.slots.wire import Flag

YOUNG_S = 0.1
TICK_S = 0.025
GRACE_S = 5.0
"""A slot asks or replies within milliseconds of its program's wall limit; a slot that takes this long is hung."""
MAX_ATTEMPTS = 3


@dataclass(eq=False)
class Job:
    request: Request
    flow: str
    code: bytes
    stdin: bytes
    future: asyncio.Future[Execution]
    queued_at: float
    clock: WallClock
    num_attempts: int = 0
    started_at: float = 0.0
    due_at: float = 0.0
    """The time by which the slot must have asked or replied."""
    is_young: bool = True
    keeps_share: bool = False
    """True if the program keeps its full CPU share."""
    relay: OutputRelay | None = None
    """Receives the output while the program runs."""
    slot: "_Slot | None" = None

    @property
    def expires_at(self) -> float:
        return self.queued_at + self.request.queue_s


@dataclass(eq=False)
class _Slot:
    """A place for one execution at a time, with its own memory group; its process may be replaced."""

    memory: MemoryAccount
    uid_number: int = -1
    """The number of the uid, new for each process."""
    channel: SlotChannel | None = None
    pid: int = 0
    job: Job | None = None


@dataclass
class Counters:
    num_started: int = 0
    num_retried: int = 0
    num_starved: int = 0
    """Retried executions that were restarted at full share."""
    num_slots_lost: int = 0
    num_slots_made: int = 0
    by_status: dict[str, int] = field(default_factory=dict)


class Dispatcher:
    def __init__(self, factory: SlotFactory, *, num_young: int, max_slots: int, queue_capacity: int) -> None:
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._num_young_allowed = num_young
        self._max_slots = max_slots
        self.queue: FairQueue[Job] = FairQueue(queue_capacity)
        self._slots: list[_Slot] = []
        self._idle: list[_Slot] = []
        self._num_young = 0
        self._next_flow = 0
        self._end: str | None = None
        """Why the dispatcher has stopped; None while it runs."""
        self._refusal = ""
        """The resource that the machine refused when a slot was last requested."""
        self._next_expiry = math.inf
        self._group_numbers = itertools.count()
        self.counters = Counters()
        factory.on_template_ready = self._pump
        self._ticker = asyncio.create_task(self._tick(), name="sandbox dispatcher clock")
        self._ticker.add_done_callback(self._on_clock_stopped)
        for _ in range(min(num_young, max_slots)):
            if (slot := self._add_slot()) is not None:
                self._idle.append(slot)

    # ---- callers ----

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    @property
    def num_running(self) -> int:
        return len(self._slots) - len(self._idle)

    def new_flow(self) -> str:
        self._next_flow += 1
        return f"#{self._next_flow}"

    def submit(self, request: Request, on_output: OnOutput | None = None) -> Job:
        """Queue a request. Overloaded if the queue is full, UserError for files that cannot be put or fetched;
        otherwise the job's future always gets a result."""
        if self._end is not None:
            raise InfrastructureError(self._end)
        if self.queue.room <= 0:
            raise Overloaded(retry_after_s=min(30.0, max(0.1, len(self.queue) * 0.001)))
        if request.files or request.fetch_files:
            check_files(request.files, request.fetch_files)
        code = wire.encode_source(request.code, rich=request.rich, files=request.files, fetch_files=request.fetch_files)
        stdin = request.stdin.encode("utf-8", "surrogatepass")
        future: asyncio.Future[Execution] = self._loop.create_future()
        flow = request.flow or self.new_flow()
        clock = WallClock(request.limits.wall_s, request.limits.longest_s)
        job = Job(request, flow, code, stdin, future, time.monotonic(), clock)
        job.relay = None if on_output is None else OutputRelay(on_output)
        max_bytes = wire.MAX_SOURCE_BYTES if request.files else wire.MAX_CODE_BYTES
        if len(code) > max_bytes or len(stdin) > wire.MAX_STDIN_BYTES:
            what = "code with its files" if request.files else "code"
            message = f"{what} is limited to {max_bytes} bytes and stdin to {wire.MAX_STDIN_BYTES}"
            future.set_result(Execution(ExecutionStatus.ERROR, message=message, exit_code=None))
            return job
        self.queue.push(flow, job)
        self._next_expiry = min(self._next_expiry, job.expires_at)
        self._pump()
        return job

    def cancel(self, job: Job) -> None:
        """End the execution of a caller that has left, or remove it from the queue."""
        job.future.cancel()
        if job.slot is not None:
            slot = job.slot
            self._release(slot)
            self._drop_process(slot)
            self._pump()
        else:
            self.queue.remove(job.flow, job)

    # ---- running ----

    def _pump(self) -> None:
        while len(self.queue) and self._num_young < self._num_young_allowed and self._end is None:
            slot = self._take_idle_slot()
            if slot is None:
                return
            job = self.queue.pop()
            while job.future.done() and len(self.queue):
                job = self.queue.pop()
            if job.future.done():
                self._idle.append(slot)
                return
            if not self._start(slot, job):
                self.queue.push_front(job.flow, job)
                self._idle.insert(0, slot)  # prefer other slots, which may have a process
                return

    def _take_idle_slot(self) -> _Slot | None:
        if self._idle:
            return self._idle.pop()
        if len(self._slots) < self._max_slots:
            return self._add_slot()
        return None

    def _add_slot(self) -> _Slot | None:
        try:
            group = self._factory.make_memory_group(f"slot-{next(self._group_numbers)}")
        except OSError as error:
            self._refusal = f"no memory group: {error}"
            return None
        slot = _Slot(MemoryAccount(group))
        self._slots.append(slot)
        self._make_process(slot)
        return slot

    def _make_process(self, slot: _Slot) -> bool:
        """Request a process for the slot; its socket can be written to before the process exists. False if none can be
        made."""
        try:
            ours, theirs = socket_pair()
        except OSError as error:
            self._refusal = f"no socket: {error}"
            return False
        slot.uid_number = STATELESS_NUMBERS.draw()
        with theirs:
            channel = SlotChannel(
                self._loop,
                ours,
                prefix_bytes=0,
                on_reply=lambda header, body: self._on_reply(slot, header, body),
                on_lost=lambda: self._on_lost(slot),
            )
            is_requested = self._factory.fork_slot(
                wire.KIND_STATELESS,
                slot.uid_number,
                theirs,
                slot.memory.group,
                lambda pid: self._on_forked(slot, channel, pid),
            )
        if not is_requested:
            self._refusal = "no template is ready"
            channel.close()
            return False
        self._refusal = ""
        slot.channel, slot.pid = channel, 0
        self.counters.num_slots_made += 1
        return True

    def _on_forked(self, slot: _Slot, channel: SlotChannel, pid: int) -> None:
        """Record a new process. One that was cancelled before it existed finds its socket closed."""
        if slot.channel is channel:
            if pid > 0:
                slot.pid = pid
            elif channel.is_open:
                channel.close()
                self._on_lost(slot)

    def _start(self, slot: _Slot, job: Job) -> bool:
        if (slot.channel is None or not slot.channel.is_open) and not self._make_process(slot):
            return False
        assert slot.channel is not None
        limits = job.request.limits
        try:
            slot.memory.begin(limits.memory_bytes)
        except OSError as error:
            # The group still uses more than the new limit; a new process in it starts with none.
            self._drop_process(slot)
            if job.num_attempts >= MAX_ATTEMPTS:
                message = f"the memory limit could not be set: {error}"
                self._finish(job, Execution(ExecutionStatus.INFRASTRUCTURE, message=message))
            job.num_attempts += 1
            return False
        slot.job, job.slot = job, slot
        job.started_at, job.is_young = time.monotonic(), True
        job.due_at = job.started_at + limits.wall_s + GRACE_S
        job.num_attempts += 1
        self._num_young += 1
        self.counters.num_started += 1
        request = wire.encode_request(
            job.code,
            job.stdin,
            limits,
            has_memory_group=slot.memory.group is not None,
            longest_s=job.clock.bound_s,
            young_s=math.inf if job.keeps_share else YOUNG_S,
            is_streamed=job.relay is not None,
        )
        if job.relay is not None:
            job.relay.restart()
        slot.channel.send(request)
        return True

    def _release(self, slot: _Slot) -> Job:
        """Take the job out of its slot, which is then free."""
        job = slot.job
        assert job is not None
        slot.job = job.slot = None
        if job.is_young:
            self._num_young -= 1
        self._idle.append(slot)
        return job

    def _drop_process(self, slot: _Slot) -> None:
        if slot.channel is not None:
            slot.channel.close()
        slot.channel, slot.pid = None, 0

    def _replace(self, slot: _Slot) -> None:
        """Replace an idle slot whose group is being killed: what ran in it next would be killed too."""
        self._drop_process(slot)
        self._slots.remove(slot)
        self._idle.remove(slot)
        if slot.memory.group is not None:
            self._factory.retire_memory_group(slot.memory.group)
        if (fresh := self._add_slot()) is not None:
            self._idle.append(fresh)

    def _on_reply(self, slot: _Slot, header: bytes, body: bytes) -> None:
        if (asked_after_s := wire.asked_after_s(header)) is not None:
            self._on_wall_limit(slot, asked_after_s)
            return
        relay = slot.job.relay if slot.job is not None else None
        if relay is not None and (output := wire.partial_output(header, body)) is not None:
            relay.receive(*output)
            return
        job = self._release(slot)
        was_signalled = wire.REPLY.unpack(header)[0] & 0x7F
        killed_for_memory = bool(was_signalled) and slot.memory.was_killed()
        execution, flags = wire.decode_reply(
            header,
            body,
            job.request.limits,
            killed_for_memory=killed_for_memory,
            is_starved=job.clock.is_starved,
            fetch_files=job.request.fetch_files,
        )
        if killed_for_memory and slot.memory.ends_slot:
            self._replace(slot)
        elif Flag.USED_UP in flags:  # the slot's process has exited; make the next one before a request needs it
            self._drop_process(slot)
            self._make_process(slot)
        self._finish(job, execution)
        self._pump()

    def _on_wall_limit(self, slot: _Slot, elapsed_s: float) -> None:
        job = slot.job
        assert job is not None and slot.channel is not None
        more_s = job.clock.more_s(elapsed_s, tasks_below(slot.pid) if slot.pid else ())
        if more_s and job.clock.had_s < job.request.limits.wall_s / 2 and self._may_keep_share(job):
            job.keeps_share = True
            job.clock = WallClock(job.request.limits.wall_s, job.clock.bound_s - elapsed_s)
            self._release(slot)
            self._drop_process(slot)
            self.counters.num_retried += 1
            self.counters.num_starved += 1
            self.queue.push_front(job.flow, job)
            self._pump()
            return
        job.due_at = time.monotonic() + more_s + GRACE_S
        slot.channel.send(wire.encode_more_time(more_s))

    def _may_keep_share(self, job: Job) -> bool:
        """Whether to restart a program at full share; an ordinary user cannot raise a lowered share."""
        num_keeping = sum(1 for slot in self._slots if slot.job is not None and slot.job.keeps_share)
        return not job.keeps_share and num_keeping < self._num_young_allowed

    def _on_lost(self, slot: _Slot) -> None:
        """Handle the exit of a slot's process, idle or during an execution."""
        self._drop_process(slot)
        self.counters.num_slots_lost += 1
        if slot.job is None:
            return
        job = self._release(slot)
        if slot.memory.was_killed():
            limit = job.request.limits.memory_bytes
            message = f"stopped at its memory limit of {limit} bytes"
            self._finish(job, Execution(ExecutionStatus.MEMORY, message=message, signal=9))
            if slot.memory.ends_slot:
                self._replace(slot)
        elif job.num_attempts < MAX_ATTEMPTS and not job.future.done():
            self.counters.num_retried += 1
            self.queue.push_front(job.flow, job)
        else:
            message = f"the worker was lost, {job.num_attempts} times in a row"
            self._finish(job, Execution(ExecutionStatus.INFRASTRUCTURE, message=message))
        self._pump()

    def _finish(self, job: Job, execution: Execution) -> None:
        status = execution.status.value
        self.counters.by_status[status] = self.counters.by_status.get(status, 0) + 1
        if not job.future.done():
            queue_s = (job.started_at or time.monotonic()) - job.queued_at
            job.future.set_result(replace(execution, queue_s=queue_s, num_attempts=job.num_attempts))
            if job.relay is not None:
                job.relay.finish(execution)

    # ---- deadlines ----

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            for slot in list(self._slots):
                job = slot.job
                if job is None:
                    continue
                slot.memory.look(slot.pid)
                if job.is_young and now - job.started_at > YOUNG_S:
                    job.is_young = False
                    self._num_young -= 1
                    if not self._factory.layers.distinct_uid and not job.keeps_share and slot.pid:
                        # The slot itself can lower only the share of the program's own process group.
                        renice([process.pid for process in running_below(slot.pid)], LOW_NICE)
                if now > job.due_at:
                    kill_quietly(slot.pid)
                    self._on_lost(slot)
            self._expire(now)
            self._pump()

    def _expire(self, now: float) -> None:
        """End the jobs that waited longer than their callers allowed. A long queue is searched only when a job may have
        expired."""
        if now < self._next_expiry:
            return
        for job in self.queue.take_expired(lambda job: job.expires_at <= now):
            message = f"no worker was free within {job.request.queue_s:g} s"
            message += f" ({self._refusal})" if self._refusal else ""
            self._finish(job, Execution(ExecutionStatus.QUEUE_TIMEOUT, message=message))
        self._next_expiry = min((job.expires_at for job in self.queue), default=math.inf)

    def _on_clock_stopped(self, ticker: "asyncio.Task[None]") -> None:
        """Fail all waiting and later calls at once if the clock failed, because then no call has a deadline."""
        if not ticker.cancelled() and (error := ticker.exception()) is not None:
            self._give_up(f"the sandbox's dispatcher failed: {error!r}")

    def _give_up(self, reason: str) -> None:
        self._end = reason
        for slot in self._slots:
            if slot.job is not None:
                job = self._release(slot)
                self._finish(job, Execution(ExecutionStatus.INFRASTRUCTURE, message=reason))
            self._drop_process(slot)
        while len(self.queue):
            self._finish(self.queue.pop(), Execution(ExecutionStatus.INFRASTRUCTURE, message=reason))

    async def close(self) -> None:
        self._ticker.cancel()
        self._give_up("the sandbox was closed")
        for slot in self._slots:
            if slot.memory.group is not None:
                self._factory.retire_memory_group(slot.memory.group)
