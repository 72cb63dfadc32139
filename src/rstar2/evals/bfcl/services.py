"""BFCL's simulated services (a file system, a travel agency, ...), which come with `bfcl-eval`, run in the sandbox.

The package hands each call to Python's `eval`, so it gets only calls of functions that the services have, with
arguments that are literals; any other call is answered as the package would, and fails in its check, too. No state is
kept between two steps of a conversation: each step is a program that repeats the calls so far, in milliseconds, so a
lost sandbox costs nothing. The package's checker then repeats the conversation and compares it with the right calls.
"""

import functools
import importlib.util
import json
import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2.data import MultiTurnCallTask
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import ToolCall, ToolResult, ToolStatus
from rstar2.sandbox import Execution, ExecutionStatus, Executor, Limits, Request

PACKAGE = "bfcl-eval==2025.7.8"
"""The last release with v3's services."""
_LIMIT_STATUSES = (ExecutionStatus.TIMEOUT, ExecutionStatus.MEMORY, ExecutionStatus.OUTPUT_LIMIT)
_LIMITS = Limits(wall_s=60.0, cpu_s=60.0, output_bytes=16 << 20)
_DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
NOT_RUN = "call_that_was_not_run()"
"""A stand-in, in the check, for a call that the services never saw: it fails there, too."""

_MODULE = "bfcl_eval.eval_checker.multi_turn_eval"
_RUN = f"""
import contextlib, io, json, sys
from {_MODULE}.multi_turn_utils import execute_multi_turn_func_call

asked = json.load(sys.stdin)
entry = asked["entry"]

def run(calls):
    with contextlib.redirect_stdout(io.StringIO()):
        results, _ = execute_multi_turn_func_call(
            calls, entry["initial_config"], entry["involved_classes"], "model", entry["id"],
            long_context="long_context" in entry["id"],
        )
    return results

run(asked["before"])
print(json.dumps(run(asked["calls"])))
"""
_CHECK = f"""
import contextlib, io, json, sys
from {_MODULE}.multi_turn_checker import multi_turn_checker

asked = json.load(sys.stdin)
entry = asked["entry"]
with contextlib.redirect_stdout(io.StringIO()):
    checked = multi_turn_checker(asked["turns"], entry["ground_truth"], entry, entry["category"], "model")
print(json.dumps([checked["valid"], checked.get("error_type", "")]))
"""


def require_services() -> Path:
    """The package's folder. The package is located and not imported: its services run in the sandbox."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"bfcl_multi_turn needs BFCL's simulated services: run `pip install --no-deps {PACKAGE}` where rstar2 is "
            "installed, and where its sandbox is if that is elsewhere. They need nothing of what the package pins"
        )
    return Path(spec.submodule_search_locations[0])


def functions_of(task: MultiTurnCallTask) -> list[dict[str, Any]]:
    """The functions of a task's services, as the package describes them."""
    for service in task.services:
        if service not in _DOCUMENTS:
            raise UserError(
                f"{task.id} needs the service {service}, which is unknown; there are {', '.join(_DOCUMENTS)}"
            )
    return [function for service in task.services for function in _described(service)]


@functools.cache
def _described(service: str) -> list[dict[str, Any]]:
    path = require_services() / "data" / "multi_turn_func_doc" / f"{_DOCUMENTS[service]}.json"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def known_names(task: MultiTurnCallTask) -> frozenset[str]:
    return frozenset(str(function["name"]) for function in functions_of(task))


def source_of(name: str, arguments: Mapping[str, Any], known: frozenset[str]) -> str | None:
    """The call as Python source text; None if it is not safe to pass to the services."""
    is_safe = name in known and all(key.isidentifier() and not keyword.iskeyword(key) for key in arguments)
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" if is_safe else None


@dataclass(slots=True)
class CallServices:
    """The services of one conversation, in the state after its calls so far."""

    executor: Executor
    task: MultiTurnCallTask
    _before: list[str] = field(default_factory=list)

    async def run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Runs the calls of one step, in their order. If they run into a limit, the state stays as it was before
        them."""
        known = known_names(self.task)
        sources = [source_of(call.name or "", call.arguments, known) for call in calls]
        safe = [source for source in sources if source is not None]
        stdin = json.dumps({"entry": _entry(self.task), "before": self._before, "calls": safe})
        execution = await self.executor.run(Request(_RUN, stdin, _LIMITS))
        if execution.status in _LIMIT_STATUSES:
            reason = f"Error during execution: {execution.message}"
            return [ToolResult(execution.tool_status, reason) for _ in calls]
        said = iter(json.loads(_checked(execution).stdout))
        self._before += safe
        return [
            _result(next(said)) if source is not None else _unknown(call)
            for call, source in zip(calls, sources, strict=True)
        ]


def _result(said: str) -> ToolResult:
    return ToolResult(ToolStatus.RAISED if said.startswith("Error during execution:") else ToolStatus.OK, said)


def _unknown(call: ToolCall) -> ToolResult:
    return ToolResult(ToolStatus.UNKNOWN_TOOL, f"Error during execution: name {call.name!r} is not defined")


async def check(
    executor: Executor, task: MultiTurnCallTask, turns: Sequence[Sequence[Sequence[str]]]
) -> tuple[bool, str]:
    """Whether these calls, by turn and step, have the effect of the right ones; if not, the package's name of the
    error."""
    stdin = json.dumps({"entry": _entry(task), "turns": turns})
    execution = _checked(await executor.run(Request(_CHECK, stdin, _LIMITS)))
    is_right, error = json.loads(execution.stdout)
    return bool(is_right), str(error)


def _entry(task: MultiTurnCallTask) -> dict[str, Any]:
    return {
        "id": task.id,
        "category": task.category,
        "initial_config": task.initial_config,
        "involved_classes": task.services,
        "ground_truth": task.ground_truth,
    }


def _checked(execution: Execution) -> Execution:
    if execution.ok:
        return execution
    if "No module named 'bfcl_eval'" in execution.stderr:
        raise UserError(
            f"the sandbox has no {PACKAGE}: run `pip install --no-deps {PACKAGE}` where it runs, and start a "
            "service with `--package bfcl-eval`"
        )
    reason = execution.message or execution.stderr[-300:]
    raise InfrastructureError(f"BFCL's services ended with {execution.status}: {reason}")
