"""`rstar2 doctor` on this very machine, and its question to a hub on loopback."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rstar2.doctor import State, examine
from rstar2.doctor.hub import begin_hub_check

pytestmark = pytest.mark.integration

DOCTOR = "import typer; from rstar2.cli.doctor import doctor_command; typer.run(doctor_command)"


def run_doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", DOCTOR, *arguments], capture_output=True, text=True, timeout=240, check=False
    )


def test_the_report_of_this_machine(tmp_path: Path) -> None:
    report = examine(tmp_path / "runs", offline=True)
    # A container may lack namespaces; everything else that the core needs, a machine that runs tests has.
    assert all(check.section == "isolation" for check in report.blocking), report.blocking
    assert {check.section for check in report.checks} == {"machine", "sandbox", "isolation", "optional"}
    assert all(check.fix for check in report.checks if check.state is not State.OK), "what falls short has a fix"
    names = [(check.section, check.name) for check in report.checks]
    assert len(set(names)) == len(names)
    assert not (tmp_path / "runs").exists()


def test_json_is_the_only_thing_on_stdout(tmp_path: Path) -> None:
    done = run_doctor("--json", "--offline", "--runs", str(tmp_path))
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1), done.stderr
    assert report["version"]
    assert {"section", "name", "state", "found", "fix", "required"} == set(report["checks"][0])
    assert not any(check["name"] == "Hugging Face hub" for check in report["checks"])


def test_the_exit_code_says_that_the_core_lacks_something(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_doctor("--offline", "--runs", str(tmp_path / "file" / "runs"))
    assert done.returncode == 1
    assert "the core cannot do without: room for runs" in " ".join(done.stdout.split())


class Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404 if self.path.startswith("/gone") else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub_address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_hub_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT", "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_a_hub_that_answers(hub_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub_address)
    check = begin_hub_check()()
    assert (check.state, check.found) == (State.OK, f"{hub_address} answers")


def test_a_hub_that_answers_no(hub_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{hub_address}/gone")
    check = begin_hub_check()()
    assert check.state is State.LIMITED
    assert "it answers 404" in check.found
    assert check.fix


def test_a_hub_that_is_not_there_or_is_not_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening: refused
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert "refused" in begin_hub_check()().found
    monkeypatch.setenv("HF_ENDPOINT", "nonsense")
    assert begin_hub_check()().state is State.LIMITED


@pytest.mark.timing
def test_a_hub_that_is_silent_costs_no_more_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.doctor.hub.DEADLINE_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started_s = time.monotonic()
        assert begin_hub_check()().state is State.LIMITED
        assert time.monotonic() - started_s < 120


def test_a_hub_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert begin_hub_check()().found == "HF_HUB_OFFLINE is set"
