"""Runs a program in the sandboxed child: compiles and runs it, shows the last expression, and exits as Python would.

This file is loaded before confinement and runs where no module of rstar2 can be imported, so it uses only the standard
library and two files that do the same. What a program prints, raises and returns is as in a plain interpreter, or, for
a cell, in a notebook. Each object that it touches costs a copied page, so the path of a program that ends well is
short.
"""

import __future__

import ast
import atexit
import builtins
import ctypes
import io
import linecache
import logging
import marshal
import multiprocessing.process
import os
import random
import signal
import stat
import sys
import threading
import traceback
import types

from rstar2.sandbox.slots import report, rich

EXIT_OK, EXIT_RAISED = 0, 1
VALUE_FD = 3
TAG_VALUE, TAG_OUT_OF_MEMORY = b"v", b"m"
"""The first byte on `VALUE_FD`: the value's text follows, or the program ended with an uncaught MemoryError."""
CELL_NAME = "<cell>"
ASKED = b"\0"
"""The first byte of a source with extra options: the length of a marshalled tuple follows (rich results, files to
write, files to fetch), then the tuple and the program. No program starts with this byte."""

_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag

_main = types.ModuleType("__main__")
_num_first_names = 0
_num_inherited_exit_handlers = 0
_num_inherited_log_handlers = 0
_num_exit_handlers = atexit._ncallbacks
# These show whether a program left work for its exit. They are read directly, because each object that is touched costs
# a page.
_threads: dict[object, object] = threading._active  # type: ignore[attr-defined]
_threads_to_be: dict[object, object] = threading._limbo  # type: ignore[attr-defined]
_child_processes: set[object] = multiprocessing.process._children  # type: ignore[attr-defined]
_log_handlers: list[object] = logging._handlerList  # type: ignore[attr-defined]
_carried_flags = 0
"""Compiler flags: a `from __future__` of one cell holds in the next ones, as in a notebook."""
_has_records = False
"""Whether `VALUE_FD` gets records."""
_notebook: rich.Notebook | None = None
"""Collects rich results; None if the caller did not request them."""


def prepare() -> None:
    """The template's last step: streams, a fresh `__main__`, and a rehearsal of typical programs."""
    global _num_inherited_exit_handlers, _num_inherited_log_handlers, _num_first_names
    # Exit handlers of the libraries need not run for a program that registers none, and a rehearsal that ran them would
    # shut the libraries' thread pools down.
    _num_inherited_exit_handlers = _num_exit_handlers()
    _num_inherited_log_handlers = len(_log_handlers)
    _num_first_names = len(new_main().__dict__)
    _rehearse_with_null_streams()
    open_standard_streams()
    new_main()
    sys.argv[:] = [""]
    sys.orig_argv[:] = [sys.executable]


def open_standard_streams() -> None:
    """Open line-buffered streams, so that output before a kill is not lost, on a pipe, as a program's will be: a stream
    remembers whether it could seek when it was opened. Newlines are not translated, as in Python."""
    saved = [os.dup(fd) for fd in range(3)]
    read_end, write_end = os.pipe()
    for fd, end in enumerate((read_end, write_end, write_end)):
        os.dup2(end, fd)
    open_stdin()
    sys.stdout = open(1, "w", encoding="utf-8", newline="\n", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", newline="\n", buffering=1, closefd=False
    )
    for stream, name in ((sys.stdout, "<stdout>"), (sys.stderr, "<stderr>")):
        stream.buffer.raw.name = name  # type: ignore[attr-defined]
    for fd, old in enumerate(saved):
        os.dup2(old, fd)
        os.close(old)
    os.close(read_end)
    os.close(write_end)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]


def open_stdin() -> None:
    sys.stdin = open(0, encoding="utf-8", newline="\n", closefd=False)  # noqa: SIM115
    sys.stdin.buffer.raw.name = "<stdin>"  # type: ignore[attr-defined]
    sys.__stdin__ = sys.stdin  # type: ignore[misc]


def new_main() -> types.ModuleType:
    """A fresh `__main__`, as a starting interpreter has it."""
    global _main
    _main = types.ModuleType("__main__")
    _main.__dict__["__builtins__"] = builtins
    _main.__annotations__ = {}
    sys.modules["__main__"] = _main
    return _main


def _rehearse_with_null_streams() -> None:
    null = open(os.devnull, "w")  # noqa: SIM115, PTH123
    streams = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = null
    # Repeat often enough for the interpreter to specialize the code.
    for _ in range(16):
        for source in (b"print(1 + 1)", b"def f():\n    raise ValueError('x')\nf()", b"1 +"):
            new_main()
            run_program(source)
    sys.stdout, sys.stderr = streams
    null.close()


def rehearse() -> None:
    """Touch the pages that every program touches, before a slot serves. Leaves no trace that a program could see."""
    run_program(b"print(1 + 1)")


def reseed() -> None:
    """Reseed the random generators. A fork inherits them, so without this every execution would draw the same
    numbers."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(int.from_bytes(os.urandom(4), "little"))
    if "sympy.core.random" in sys.modules:
        sys.modules["sympy.core.random"].rng.seed()


def run_reseeded(source: bytes) -> int:
    """`run_program`, where the generators cannot be reseeded in place."""
    reseed()
    return run_program(source)


def find_twisters() -> tuple[tuple[int, int], ...]:
    """Addresses of the state and the position of the loaded Mersenne twisters, for reseeding in place. Empty if memory
    does not look as expected: programs must then run by `run_reseeded`."""
    pairs = []
    generators = [random._inst]
    if "sympy.core.random" in sys.modules:
        generators.append(sys.modules["sympy.core.random"].rng)
    for generator in generators:
        state = generator.getstate()[1]
        position = id(generator) + object.__basicsize__
        words = position + 4
        seen = [*(ctypes.c_uint32 * 624).from_address(words), ctypes.c_int32.from_address(position).value]
        if seen != list(state):
            return ()
        pairs.append((words, position))
    if "numpy.random" in sys.modules:
        state = sys.modules["numpy.random"].get_state()
        words = sys.modules["numpy.random"].mtrand._rand._bit_generator.ctypes.state_address
        position = words + 4 * 624
        seen = [*(ctypes.c_uint32 * 624).from_address(words), ctypes.c_int32.from_address(position).value]
        if seen != [*state[1].tolist(), state[2]]:
            return ()
        pairs.append((words, position))
    return tuple(pairs)


def with_asked(source: bytes, *, rich: bool, files: dict[str, bytes], fetch_files: tuple[str, ...]) -> bytes:
    """The source with its extra options in front, as the child gets it."""
    asked = marshal.dumps((rich, files, fetch_files))
    return ASKED + len(asked).to_bytes(4, "little") + asked + source


def _split_asked(source: bytes) -> tuple[bool, dict[str, bytes], tuple[str, ...], bytes]:
    end = 5 + int.from_bytes(source[1:5], "little")
    is_rich, files, fetch_files = marshal.loads(source[5:end])
    return is_rich, files, fetch_files, source[end:]


def run_program(source: bytes) -> int:
    """Run a program in `__main__` to its end, threads and exit handlers included; returns its exit code."""
    if source[:1] == ASKED:
        return _run_program_as_asked(source)
    return _run_to_end(_run_cell(source, _main.__dict__, CELL_NAME))


def _run_program_as_asked(source: bytes) -> int:
    is_rich, files, fetch_files, source = _split_asked(source)
    for path, data in files.items():
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # noqa: PTH103, PTH120
            with open(path, "xb") as file:  # noqa: PTH123
                file.write(data)
        except OSError as error:
            sys.stderr.write(f"files: {path!r} could not be written: {error.strerror}\n")
            return EXIT_RAISED
    code = _run_to_end(_run_as_asked(source, _main.__dict__, CELL_NAME, is_rich))
    room = report.MAX_FETCHED_BYTES
    for path in fetch_files:
        content = _read_regular_file(path, room)
        if content is not None:
            room -= len(content)
            _write_to_value_fd(report.record(report.Kind.FILE, path.encode(), content))
    return code


def _read_regular_file(path: str, max_bytes: int) -> bytes | None:
    """A file's content; None unless it is regular and has at most `max_bytes`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(fd, "rb") as file:  # noqa: PTH123
            facts = os.fstat(fd)
            return file.read(max_bytes) if stat.S_ISREG(facts.st_mode) and facts.st_size <= max_bytes else None
    except OSError:
        return None


def _run_to_end(code: int) -> int:
    if len(_threads) > 1 or _threads_to_be or _has_exit_work():
        code = _run_exit_work() or code
    if len(_main.__dict__) > _num_first_names:
        _clear_namespace(_main.__dict__)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as CPython exits when a standard stream cannot be flushed
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def run_cell(source: bytes, namespace: dict[str, object], name: str) -> int:
    """Run statements in a namespace and show the value of a last expression on `VALUE_FD`. Returns the exit code, or
    minus the signal that Python would end by."""
    if source[:1] == ASKED:
        is_rich, _, _, source = _split_asked(source)
        return _run_as_asked(source, namespace, name, is_rich)
    return _run_cell(source, namespace, name)


def _run_as_asked(source: bytes, namespace: dict[str, object], name: str, is_rich: bool) -> int:
    """Run a cell that reports by records, with rich results if `is_rich`."""
    global _notebook, _has_records
    _has_records = True
    os.write(VALUE_FD, report.TAG_RECORDS)
    if is_rich:
        _notebook = rich.Notebook(_write_to_value_fd)
        _notebook.begin()
    try:
        code = _run_cell(source, namespace, name)
        if _notebook is not None:
            _notebook.end()
        return code
    finally:
        _has_records, _notebook = False, None


def _run_cell(source: bytes, namespace: dict[str, object], name: str) -> int:
    # Split the bytes, not the text: a form feed or U+2028 ends no line of a program.
    lines: list[str] = []
    for line in source.splitlines(keepends=True):  # a comprehension would create a function
        lines.append(line.decode("utf-8", "replace"))
    linecache.cache[name] = (len(source), None, lines, name)
    try:
        if ends_with_print(source):
            exec(_compile(source, name), namespace)
            return EXIT_OK
        tree: ast.Module = compile(source, name, "exec", ast.PyCF_ONLY_AST | _carried_flags, dont_inherit=True)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        if tree.body:
            exec(_compile(tree, name), namespace)
        if isinstance(last, ast.Expr):
            expression = compile(ast.Expression(last.value), name, "eval", _carried_flags, dont_inherit=True)
            value = eval(expression, namespace)
            if value is not None and not source.rstrip().endswith(b";"):
                namespace["_"] = value
                if _has_records:
                    _report_value(value)
                else:
                    _write_to_value_fd(TAG_VALUE + repr(value).encode("utf-8", "backslashreplace"))
    except SystemExit as error:
        return _exit_code(error)
    except BaseException as error:
        _show(error, name)
        if isinstance(error, MemoryError):
            os.write(VALUE_FD, report.record(report.Kind.OUT_OF_MEMORY) if _has_records else TAG_OUT_OF_MEMORY)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else EXIT_RAISED
    return EXIT_OK


def ends_with_print(source: bytes) -> bool:
    """Whether the last statement certainly is a call of `print` on a separate line, as in most programs; it has no
    value to show, so the syntax tree is not needed. A bracket opened on an earlier line would have to close on this
    one, and only a quoted bracket could hide that."""
    line = source[source.rfind(b"\n", 0, len(source.rstrip())) + 1 :].rstrip()
    # `find` and not `in`, which raises and catches a TypeError on its way to the bytes.
    if not line.startswith(b"print(") or not line.endswith(b")") or source.find(b"\\\n") >= 0:
        return False
    num_open = line.count(b"(")
    if num_open != line.count(b")"):
        return False
    if num_open > 1:
        if line.find(b"'") >= 0 or line.find(b'"') >= 0 or len(line) > 1000:
            return False
        depth = 0
        for sign in line[:-1]:  # the bracket of `print` must be the last to close: `print(1), print(2)` has a value
            depth += (sign == 40) - (sign == 41)
            if sign == 41 and depth == 0:
                return False
    return len(line.translate(None, b"[]{}#;")) == len(line)


def _compile(source: "bytes | ast.Module", name: str) -> types.CodeType:
    global _carried_flags
    code: types.CodeType = compile(source, name, "exec", _carried_flags, dont_inherit=True)
    _carried_flags |= code.co_flags & _FUTURE_FLAGS
    return code


def _clear_namespace(namespace: dict[str, object]) -> None:
    """Clear a namespace as the interpreter clears `__main__` at exit: finalizers run, open files are flushed,
    generators closed. Names with one leading underscore go first; `__builtins__` stays."""
    for is_private in (True, False):
        for name in list(namespace):
            if name != "__builtins__" and (name[:1] == "_" and name[1:2] != "_") == is_private:
                namespace[name] = None


def _write_to_value_fd(data: bytes) -> None:
    report.write_all(VALUE_FD, data)


def _report_value(value: object) -> None:
    text = repr(value).encode("utf-8", "backslashreplace")
    _write_to_value_fd(report.record(report.Kind.VALUE, data=text))
    if _notebook is not None:
        _notebook.show(value, report.Kind.RESULT)


def _report_error(error: BaseException, frames: types.TracebackType | None) -> None:
    """Report an exception as records instead of on stderr: a notebook shows it separately from output."""
    shown = "".join(traceback.format_exception(type(error), error, frames)).removesuffix("\n") + _suggestion(error)
    name, message = type(error).__name__.encode("utf-8", "replace"), str(error).encode("utf-8", "backslashreplace")
    data = shown.encode("utf-8", "backslashreplace")
    _write_to_value_fd(
        report.record(report.Kind.ERROR, name, message) + report.record(report.Kind.TRACEBACK, data=data)
    )


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return EXIT_OK
    if isinstance(error.code, int):
        return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF
    print(error.code, file=sys.stderr)
    return EXIT_RAISED


def _show(error: BaseException, name: str) -> None:
    """Show the traceback, from the program's first frame on, with its source lines."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        if isinstance(error, SyntaxError) and error.text is None and error.filename == name and error.lineno:
            error.text = linecache.getline(name, error.lineno)
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
        error.__traceback__ = frames
        if _notebook is not None:
            _report_error(error, frames)
            if sys.excepthook is sys.__excepthook__:
                return
        if sys.excepthook is sys.__excepthook__ and not (isinstance(error, SyntaxError) and frames is None):
            text = "".join(traceback.format_exception(type(error), error, frames))
            sys.stderr.write(text.removesuffix("\n") + _suggestion(error) + "\n")
        else:
            sys.excepthook(type(error), error, frames)
    except BaseException:
        os.write(2, f"{type(error).__name__}: the traceback could not be printed\n".encode())


def _suggestion(error: BaseException) -> str:
    """The suggestion for a misspelt name; before 3.12 only the interpreter's own excepthook adds it."""
    if sys.version_info >= (3, 12) or not isinstance(error, NameError | AttributeError):
        return ""
    stream, shown = sys.stderr, io.StringIO()
    sys.stderr = shown
    try:
        sys.__excepthook__(type(error), error, error.__traceback__)
    finally:
        sys.stderr = stream
    _, mark, rest = shown.getvalue().rstrip("\n").rpartition(". Did you mean: ")
    return mark + rest if mark else ""


def _has_exit_work() -> bool:
    return bool(
        _num_exit_handlers() > _num_inherited_exit_handlers
        or _child_processes
        or len(_log_handlers) > _num_inherited_log_handlers
    )


def _run_exit_work() -> int:
    """Do the interpreter's work at exit: wait for threads, then run exit handlers."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        if _has_exit_work():
            atexit._run_exitfuncs()
    except BaseException as error:
        _show(error, CELL_NAME)
        return EXIT_RAISED
    return EXIT_OK
