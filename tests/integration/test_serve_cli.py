"""`rstar2 serve` as a command: keys, mistakes, SIGTERM, and a server in front of another."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import requests

from model_server import ModelServer, serving, tiny_model
from rstar2.config import parse_recipe, to_toml
from rstar2.records import RunDirectory

pytestmark = pytest.mark.integration

BODY = {"prompt": [5, 9, 300, 12], "max_tokens": 12, "seed": 4, "return_token_ids": True, "logprobs": 0}


def completed(root: str, body: dict[str, Any], **options: Any) -> Any:
    response = requests.post(f"{root}/v1/completions", json=body, timeout=240, **options)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def test_a_server_in_front_of_another_gives_the_same_tokens(tiny_served: Path) -> None:
    environment = {**os.environ, "RSTAR2_SERVE_KEY": "secret"}
    with serving(str(tiny_served), "--name", "behind", environment=environment) as behind:
        key = {"Authorization": "Bearer secret"}
        assert requests.post(f"{behind.root}/v1/completions", json=BODY, timeout=240).status_code == 401
        expected = completed(behind.root, BODY, headers=key)
        front = ("behind", "--base-url", f"{behind.root}/v1", "--api-key-env", "BEHIND_KEY")
        environment = {**os.environ, "BEHIND_KEY": "secret"}
        with serving(*front, "--tokenizer", str(tiny_served), environment=environment) as server:
            found = completed(server.root, BODY)
            assert found["token_ids"] == expected["token_ids"]
            assert found["logprobs"]["token_logprobs"] == expected["logprobs"]["token_logprobs"]
            scored = requests.post(f"{server.root}/v1/completions", json=BODY | {"echo": True}, timeout=240)
            assert scored.status_code == 400 and "score" in scored.json()["error"]["message"]
        with serving(*front, environment=environment) as server:
            messages = [{"role": "user", "content": "one two"}]
            chat = {"messages": messages, "max_tokens": 5, "seed": 1}
            answer = requests.post(f"{server.root}/v1/chat/completions", json=chat, timeout=240).json()
            assert answer["choices"][0]["message"]["role"] == "assistant"
            refused = requests.post(f"{server.root}/v1/completions", json=BODY, timeout=240)
            assert refused.status_code == 400 and "--tokenizer" in refused.json()["error"]["message"]


RECIPE = 'name = "mine"\n[model]\nname = "tiny:llama"\ncontext_tokens = 640\n[engine]\nkv_cache_tokens = 4096'


def test_a_training_run_is_served_by_its_name_with_its_limits(tmp_path: Path) -> None:
    run = tmp_path / "mine-1"
    with RunDirectory.create(run, verb="train", recipe_toml=to_toml(parse_recipe(RECIPE)), seed=0):
        tiny_model(run / "final")
    with serving(str(run)) as server:
        card = requests.get(f"{server.root}/v1/models", timeout=240).json()["data"][0]
        assert (card["id"], card["max_model_len"]) == ("mine-1", 640)
        assert len(completed(server.root, BODY | {"model": "mine-1"})["token_ids"]) == 12


def test_sigterm_finishes_a_stream_that_runs(tiny_served: Path) -> None:
    server = ModelServer(str(tiny_served))
    try:
        body = {"prompt": [5, 9], "max_tokens": 400, "ignore_eos": True, "stream": True, "return_token_ids": True}
        with requests.post(f"{server.root}/v1/completions", json=body, stream=True, timeout=240) as response:
            lines = response.iter_lines()
            first = next(lines)
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            events = [first, *filter(None, lines)]
        stopping.join(60)
        assert server.process.returncode == 0 and "draining" in "".join(server.lines)
        assert events[-1] == b"data: [DONE]"
        assert sum(len(json.loads(event[6:])["choices"][0]["token_ids"]) for event in events[:-1]) == 400
    finally:
        server.process.kill()
        server.process.wait(60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "give a key with --key-file"),
        (["--key-file", "nowhere"], "--key-file nowhere: it cannot be read"),
        (["nowhere/to/be/found"], "neither a model folder nor a name"),
        (["--threads", "5000"], "--threads of 5000"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "rstar2", "serve", *arguments, "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 2 and message in ended.stderr and "Traceback" not in ended.stderr
