"""`rstar2 sandbox run FILE`: one program, isolated, here or on a service."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.output import ExitCode, note, print_json, printable
from rstar2.cli.sandbox.service_token import TokenFile, given_token
from rstar2.errors import UserError

SAY_AFTER_S = 2.0

if TYPE_CHECKING:
    from rstar2.sandbox import Request
    from rstar2.sandbox.unsafe.executor import UnsafeExecutor


def run(
    file: Annotated[str, typer.Argument(help="The program; `-` reads it from standard input.")],
    stdin: Annotated[Path | None, typer.Option(help="A file that the program reads as its standard input.")] = None,
    wall_s: Annotated[float, typer.Option("--wall", help="Wall-clock limit in seconds.")] = 10.0,
    cpu_s: Annotated[float, typer.Option("--cpu", help="CPU limit of any one process, in seconds.")] = 10.0,
    memory_mib: Annotated[int, typer.Option("--memory", help="Memory limit in MiB.")] = 1024,
    address: Annotated[str | None, typer.Option(help="A service to run it on, instead of this machine.")] = None,
    token_file: TokenFile = None,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="A plain subprocess with no isolation at all.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the full result as JSON.")] = False,
) -> None:
    """Run one program and show what it did. Exit code 1 if the program failed, 3 if the sandbox did."""
    from dataclasses import asdict

    from rstar2.sandbox import Execution, Limits, Request, Sandbox
    from rstar2.sandbox.execution import MIB

    code = _read(file)
    try:
        limits = Limits(wall_s=wall_s, cpu_s=cpu_s, memory_bytes=memory_mib * MIB)
    except ValueError as error:
        raise UserError(str(error)) from None
    request = Request(code, _read(str(stdin)) if stdin else "", limits)
    with (
        _saying_what_it_waits_for(address, request),
        Sandbox(address, given_token(token_file), executor=_unsafe_executor if unsafe else None) as sandbox,
    ):
        result: Execution = sandbox.run(request.code, request.stdin, limits)
    if as_json:
        print_json(asdict(result))
    else:
        sys.stdout.write(printable(result.stdout, sys.stdout))
        sys.stderr.write(printable(result.stderr, sys.stderr))
        if result.value is not None:
            print(printable(result.value, sys.stdout))
        if not result.ok:
            note(f"[{result.status.value}] {result.message or f'exit code {result.exit_code}'}")
    if result.status.is_sandbox_fault:
        raise SystemExit(ExitCode.INFRASTRUCTURE)
    raise SystemExit(ExitCode.OK if result.ok else ExitCode.NO)


@contextmanager
def _saying_what_it_waits_for(address: str | None, request: "Request") -> Iterator[None]:
    """After a while, print what is waited for and for how long at most."""
    if address is None:
        yield
        return
    from rstar2.sandbox.client import GRACE_S, REACH_S

    longest_s = REACH_S + request.queue_s + request.limits.wall_s + GRACE_S
    what = f"waiting for the sandbox at {address}, for at most {longest_s:g} s: {REACH_S:g} s to reach it, "
    parts = f"{request.queue_s:g} s in its queue, {request.limits.wall_s:g} s to run, {GRACE_S:g} s to answer"
    timer = threading.Timer(SAY_AFTER_S, note, [what + parts])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text") from None


def _unsafe_executor() -> "UnsafeExecutor":
    from rstar2.sandbox.unsafe.executor import UnsafeExecutor

    return UnsafeExecutor()
