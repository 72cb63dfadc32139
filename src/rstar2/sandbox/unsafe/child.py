"""The child of the unsafe executor: a plain interpreter that runs cells one after another, standard library only.

It writes an empty line to the inherited stdout when it is ready; then, per cell, it reads one JSON line from the
inherited stdin and writes one JSON line. The program's own three streams are files that the parent made, so no amount
of output can block the child or reach the control channel by accident. Nothing is isolated: a program that looks for
the channel finds it.
"""

import ast
import base64
import contextlib
import io
import json
import linecache
import os
import resource
import sys
import tempfile
import threading
import traceback
import types
from typing import Any


def execute(code: str, namespace: dict[str, Any], name: str) -> object:
    """Run the code; returns the value of its last statement if that is an expression, else None."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    tree = ast.parse(code, name)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, name, "exec"), namespace)
    return eval(compile(ast.Expression(last.value), name, "eval"), namespace) if isinstance(last, ast.Expr) else None


def exit_code_of(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def run_cell(cell: dict[str, Any], namespace: dict[str, Any], name: str) -> dict[str, Any]:
    value = None
    exit_code, out_of_memory = 0, False
    try:
        shown = execute(cell["code"], namespace, name)
        value = None if shown is None else repr(shown)
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
    except SystemExit as error:
        exit_code = exit_code_of(error)
    except BaseException as error:
        exit_code, out_of_memory = 1, isinstance(error, MemoryError)
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != name:
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            exit_code = exit_code or 1
    return {"exit_code": exit_code, "out_of_memory": out_of_memory, "value": value}


def use_files(command: dict[str, Any]) -> dict[str, Any]:
    """Put, read or list files of the working directory."""
    path = command["path"]
    try:
        if command["files"] == "put":
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # noqa: PTH103, PTH120
            with open(path, "wb") as file:  # noqa: PTH123
                file.write(base64.b64decode(command["data"]))
            return {}
        if command["files"] == "read":
            if os.path.getsize(path) > command["max_bytes"]:  # noqa: PTH202
                return {"error": "File too large"}
            with open(path, "rb") as file:  # noqa: PTH123
                return {"data": base64.b64encode(file.read()).decode()}
        found = [os.path.join(folder, name)[2:] for folder, _, names in os.walk(".") for name in names]  # noqa: PTH118
        return {"found": [[name, os.path.getsize(name)] for name in sorted(found) if os.path.isfile(name)]}  # noqa: PTH113, PTH202
    except OSError as error:
        return {"error": error.strerror or str(error)}


def redirect(descriptor: int, path: str, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


def unbuffered(descriptor: int) -> io.TextIOWrapper:
    """A text stream without buffers, so that a killed program's output is kept."""
    raw = os.fdopen(descriptor, "wb", buffering=0, closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="replace", write_through=True)


def limit(what: int, amount: int) -> None:
    """Set a limit if the system has it: macOS refuses to bound the address space."""
    _, hard = resource.getrlimit(what)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(what, (amount if hard == resource.RLIM_INFINITY else min(amount, hard), hard))


def cpu_s() -> float:
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main(stdout_path: str, stderr_path: str) -> None:
    commands = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    main_module = types.ModuleType("__main__")
    sys.modules["__main__"] = main_module
    replies.write(b"\n")
    replies.flush()
    for num_cells, line in enumerate(commands):
        cell = json.loads(line)
        if "files" in cell:
            replies.write(json.dumps(use_files(cell)).encode() + b"\n")
            replies.flush()
            continue
        limit(resource.RLIMIT_CPU, int(cpu_s() + cell["cpu_s"]) + 1)
        limit(resource.RLIMIT_AS, cell["memory_bytes"])
        limit(resource.RLIMIT_FSIZE, cell["file_bytes"])
        with tempfile.TemporaryFile() as stdin:
            stdin.write(cell["stdin"].encode())
            stdin.seek(0)
            os.dup2(stdin.fileno(), 0)
        redirect(1, stdout_path, os.O_WRONLY | os.O_APPEND)
        redirect(2, stderr_path, os.O_WRONLY | os.O_APPEND)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout, sys.stderr = unbuffered(1), unbuffered(2)
        cpu_before_s = cpu_s()
        reply = run_cell(cell, main_module.__dict__, f"<cell {num_cells + 1}>")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reply["cpu_s"] = cpu_s() - cpu_before_s
        reply["peak_memory_bytes"] = peak if sys.platform == "darwin" else peak << 10
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
