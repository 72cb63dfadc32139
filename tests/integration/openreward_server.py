"""The environment that openreward's own template writes, served in a process of its own. `python openreward_server.py`
serves it until killed, and prints its port."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving() -> Iterator[str]:
    """The address of a running server."""
    with subprocess.Popen([sys.executable, str(Path(__file__))], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def main() -> None:
    import socket

    import openreward.templates.basic
    import uvicorn
    from openreward.environments import Server

    template = Path(openreward.templates.basic.__file__).with_name("server.py.tmpl")
    written = {"__name__": "written"}
    exec(compile(template.read_text(encoding="utf-8"), str(template), "exec"), written)
    app = Server([written["BasicEnvironment"]]).app  # type: ignore[list-item]
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
