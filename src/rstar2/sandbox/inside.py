"""What runs in the sandboxed child: compile the program, run it, show the last expression, leave as Python would.

This file is loaded before anything is confined and runs where nothing else of ours can be imported, so it needs the
standard library alone. Its promise is fidelity: what a program prints, raises and returns is what a plain interpreter
(for a program) or a notebook (for a cell) would show. Each object that it touches on the way costs a copied page, so
the way of a program that ends well is kept short.
"""

import __future__

import ast
import atexit
import builtins
import ctypes
import linecache
import os
import random
import sys
import threading
import traceback
import types

EXIT_OK, EXIT_RAISED = 0, 1
EXIT_OUT_OF_MEMORY = 251
"""An uncaught MemoryError; the host shows it as the 1 that Python exits with."""
VALUE_FD = 3
CELL_NAME = "<cell>"

_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag

_main = types.ModuleType("__main__")
_num_inherited_exit_handlers = 0


def prepare() -> None:
    """In the template, last of all: streams, a fresh `__main__`, and a walk down the paths that programs take."""
    global _num_inherited_exit_handlers
    _rehearse_with_null_streams()
    open_standard_streams()
    new_main()
    sys.argv[:] = [""]
    # Handlers that the libraries registered need not run for a program that registers none of its own.
    _num_inherited_exit_handlers = atexit._ncallbacks()


def open_standard_streams() -> None:
    """Line buffered, so that what was printed before a kill is not lost in a buffer."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def new_main() -> types.ModuleType:
    """A fresh `__main__`, as a starting interpreter has it."""
    global _main
    _main = types.ModuleType("__main__")
    _main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = _main
    return _main


def _rehearse_with_null_streams() -> None:
    null = open(os.devnull, "w")  # noqa: SIM115, PTH123
    streams = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = null
    # Often enough for the interpreter to specialize the code it passes through.
    for _ in range(16):
        for source in (b"print(1 + 1)", b"def f():\n    raise ValueError('x')\nf()", b"1 +"):
            new_main()
            run_program(source)
    sys.stdout, sys.stderr = streams
    null.close()


def rehearse() -> None:
    """In a slot, before it serves: touch what every program touches. Leaves no trace that a program could see."""
    run_program(b"print(1 + 1)")
    new_main()


def reseed() -> None:
    """A fork inherits its parent's generators; without this every execution would draw the same numbers."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(int.from_bytes(os.urandom(4), "little"))
    if "sympy.core.random" in sys.modules:
        sys.modules["sympy.core.random"].rng.seed()


def find_twisters() -> tuple[tuple[int, int], ...]:
    """Addresses of words and position of the loaded Mersenne twisters, for reseeding them in place. Where memory does
    not look as expected, none: the caller's `run` must then reseed by name."""
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


def run_program(source: bytes) -> int:
    """Run a whole program in `__main__` to its end, threads and exit handlers included; returns its exit code."""
    code = run_cell(source, _main.__dict__, CELL_NAME)
    if threading.active_count() > 1 or _has_exit_work():
        code = _run_exit_work() or code
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as CPython exits when a standard stream cannot be flushed
    return code


def run_cell(source: bytes, namespace: dict[str, object], name: str) -> int:
    """Run statements in a namespace and show the value of a last expression on `VALUE_FD`."""
    try:
        tree: ast.Module = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)  # type: ignore[assignment]
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        flags = 0
        if tree.body:
            body = compile(tree, name, "exec", dont_inherit=True)
            flags = body.co_flags & _FUTURE_FLAGS
            exec(body, namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval", flags, dont_inherit=True), namespace)
            if value is not None:
                namespace["_"] = value
                _write_value(repr(value))
    except SystemExit as error:
        return _exit_code(error)
    except BaseException as error:
        _show(error, source, name)
        return EXIT_OUT_OF_MEMORY if isinstance(error, MemoryError) else EXIT_RAISED
    return EXIT_OK


def _write_value(text: str) -> None:
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    while data:
        data = data[os.write(VALUE_FD, data) :]


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return EXIT_OK
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return EXIT_RAISED


def _show(error: BaseException, source: bytes, name: str) -> None:
    """The traceback from the program's own first frame on, with its source lines."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    try:
        text = source.decode("utf-8", "replace")
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        if sys.stdout is not None:
            sys.stdout.flush()
        error.__traceback__ = frames
        if sys.excepthook is sys.__excepthook__:
            traceback.print_exception(type(error), error, frames)
        else:
            sys.excepthook(type(error), error, frames)
    except BaseException:
        os.write(2, f"{type(error).__name__}: the traceback could not be printed\n".encode())


def _has_exit_work() -> bool:
    processes = sys.modules.get("multiprocessing.process")
    return bool(atexit._ncallbacks() > _num_inherited_exit_handlers or (processes is not None and processes._children))


def _run_exit_work() -> int:
    """What the interpreter does at its end: wait for threads, then run exit handlers."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        if _has_exit_work():
            atexit._run_exitfuncs()
    except BaseException as error:
        _show(error, b"", CELL_NAME)
        return EXIT_RAISED
    return EXIT_OK
