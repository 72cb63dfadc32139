"""A model that was trained here is asked as it was trained."""

import json
import shutil
from pathlib import Path

import pytest

from rstar2.agent import load_chat, write_format
from rstar2.agent.chat_template import SYSTEM_TEXT
from rstar2.agent.model_folder import FORMAT_FILE, TEMPLATE_FILE
from rstar2.errors import UserError
from rstar2.models.tiny import TinySizes, build_tiny

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build_tiny(path, "llama", TinySizes(1, 16, 2, 1, 400, 64), ["some words"], seed=0)
    return path


@pytest.mark.parametrize("words", ["", "Answer briefly."])
def test_what_it_was_told_in_training_is_told_again(folder: Path, words: str) -> None:
    write_format(folder, load_chat(folder, system_words=words))
    assert load_chat(folder).system_words == words
    assert load_chat(folder, system_words="other").system_words == "other"
    (folder / FORMAT_FILE).unlink()
    assert load_chat(folder).system_words == SYSTEM_TEXT


def test_tags_are_spelled_again_as_in_training(folder: Path) -> None:
    as_token, as_text = load_chat(folder), load_chat(folder, tool_tags="text")
    assert as_token.tokenizer.encode("<tool_call>") != as_text.tokenizer.encode("<tool_call>")
    write_format(folder, as_text)
    assert load_chat(folder).tokenizer.encode("<tool_call>") == as_text.tokenizer.encode("<tool_call>")
    given = load_chat(folder, tool_tags="token")
    assert given.tokenizer.encode("<tool_call>") == as_token.tokenizer.encode("<tool_call>")
    write_format(folder, as_token)
    assert json.loads((folder / FORMAT_FILE).read_text()).keys() == {"system_text"}
    (folder / FORMAT_FILE).unlink()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"system_text": 3}', '{"system_text": "", "tool_tags": "both"}'])
def test_a_damaged_file_is_said(folder: Path, content: str) -> None:
    (folder / FORMAT_FILE).write_text(content)
    with pytest.raises(UserError, match=FORMAT_FILE):
        load_chat(folder)
    (folder / FORMAT_FILE).unlink()


def test_the_template_of_training_is_that_of_the_folder(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    own = "{% for message in messages %}{{ message['content'] + '<|im_end|>' }}{% endfor %}"
    (tmp_path / TEMPLATE_FILE).write_text(own)
    trained = load_chat(tmp_path, "qwen")
    assert load_chat(tmp_path).prompt_text("q", ()) != trained.prompt_text("q", ())
    write_format(tmp_path, trained)
    assert load_chat(tmp_path).prompt_text("q", ()) == trained.prompt_text("q", ())
