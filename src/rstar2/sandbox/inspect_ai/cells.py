"""The cells that run a command, write a file and read one, in the notebook of a sample. Pure text."""

import json
from collections.abc import Mapping

from rstar2.sandbox.inspect_ai.argv import PythonCommand

_RUN = """
def _run(source, program, argv, env, cwd):
    # In a child: a command leaves files behind, and no variables, imports or changed settings.
    import os, runpy, sys, traceback
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        os.environ.update(env)
        if cwd is not None:
            os.chdir(cwd)
        sys.argv = argv
        if source == "file":
            sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
            runpy.run_path(program, run_name="__main__")
        elif source == "module":
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            name = "<stdin>" if source == "stdin" else "<string>"
            text = sys.stdin.read() if source == "stdin" else program
            exec(compile(text, name, "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
        code = 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            code = error.code or 0
        else:
            print(error.code, file=sys.stderr)
    except BaseException as error:
        shown = error.__traceback__.tb_next
        traceback.print_exception(type(error), error, shown)
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code & 0xFF)
"""
_WRITE = """
def _write(path, mode):
    import base64, json, os, sys
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, mode) as file:
            file.write(base64.b64decode(sys.stdin.read()))
        print(json.dumps({}))
    except OSError as error:
        print(json.dumps({"errno": error.errno, "strerror": error.strerror}))
"""
_READ = """
def _read(path, start, count):
    import base64, json, os
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(count)
            size = os.fstat(file.fileno()).st_size
        print(json.dumps({"size": size, "data": base64.b64encode(data).decode()}))
    except OSError as error:
        print(json.dumps({"errno": error.errno, "strerror": error.strerror}))
"""


def running(command: PythonCommand, env: Mapping[str, str], cwd: str | None) -> str:
    """A cell that runs the command; its value is the exit code."""
    arguments = [command.source.value, command.program, list(command.argv), dict(env), cwd]
    return f"{_RUN}\nimport json\n_run(*json.loads({json.dumps(arguments)!r}))"


def writing(path: str, *, append: bool) -> str:
    """A cell that writes its stdin, base64, to a file."""
    return f"{_WRITE}\n_write({path!r}, {'ab' if append else 'wb'!r})"


def reading(path: str, start: int, count: int) -> str:
    return f"{_READ}\n_read({path!r}, {start}, {count})"
