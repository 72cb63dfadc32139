"""A model that was trained here is asked as it was trained."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from rstar2.agent import PythonTool, load_chat, read_format, write_format
from rstar2.agent.chat_template import SYSTEM_TEXT
from rstar2.agent.model_folder import FORMAT_FILE, TEMPLATE_FILE
from rstar2.config import EnvironmentSection
from rstar2.engine.embedded.weights import load_model
from rstar2.errors import UserError

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_llama, tmp_path / "model")


@pytest.mark.parametrize("words", ["", "Answer briefly."])
def test_what_it_was_told_in_training_is_told_again(folder: Path, words: str) -> None:
    write_format(folder, load_chat(folder, system_text=words), EnvironmentSection())
    assert load_chat(folder).system_text == words
    assert load_chat(folder, system_text="other").system_text == "other"
    assert load_chat(folder, system_text="").prompt_text("Q?", ()) == (
        "<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\n<reason>"
    )
    (folder / FORMAT_FILE).unlink()
    assert load_chat(folder).system_text == SYSTEM_TEXT


def test_it_knows_the_tool_that_it_was_trained_with(folder: Path) -> None:
    assert read_format(folder).environment is None
    notebook = EnvironmentSection(tools=("jupyter_code",))
    write_format(folder, load_chat(folder), notebook)
    assert read_format(folder).environment == notebook


@pytest.mark.parametrize("tokenizer_class", ["PreTrainedTokenizerFast", "Qwen2Tokenizer"])
def test_tags_are_spelled_again_as_in_training_by_us_and_by_others(folder: Path, tokenizer_class: str) -> None:
    name_tokens_twice(folder, tokenizer_class)
    as_token, as_text = load_chat(folder), load_chat(folder, tool_tags="text")
    spoken = "<reason> So.</reason>\n<tool_call>\n{}\n</tool_call><|im_end|>\n<tool_response>\n"
    assert as_token.tokenizer.encode(spoken) != as_text.tokenizer.encode(spoken)
    write_format(folder, as_text, EnvironmentSection())
    assert load_chat(folder).tokenizer.encode(spoken) == as_text.tokenizer.encode(spoken)
    others = AutoTokenizer.from_pretrained(folder)
    assert others(spoken, add_special_tokens=False)["input_ids"] == as_text.tokenizer.encode(spoken)
    assert len(others) == as_token.tokenizer.encode("99")[0] + 1, "a token was added"
    messages, tools = [{"role": "user", "content": "Q?"}], [PythonTool.schema]
    asked = others.apply_chat_template(messages, tools=[tools[0].as_function()], add_generation_prompt=True)
    assert asked["input_ids"] == as_text.tokenizer.encode(as_text.prompt_text("Q?", tools))


def name_tokens_twice(folder: Path, tokenizer_class: str) -> None:
    """In the tokenizer's settings too, as most models do: `transformers` adds those that it does not find."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    decoder = {str(token.pop("id")): token for token in tokens}
    settings |= {"added_tokens_decoder": decoder, "tokenizer_class": tokenizer_class}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_other_programs_stop_where_the_agent_s_turns_end(folder: Path) -> None:
    """A base model ends texts, not turns."""
    (folder / "generation_config.json").write_text('{"eos_token_id": 0, "temperature": 0.7}')
    chat = load_chat(folder)
    write_format(folder, chat, EnvironmentSection())
    settings = json.loads((folder / "generation_config.json").read_text())
    assert settings == {"eos_token_id": [chat.end_of_turn_id, 0], "temperature": 0.7}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"system_text": 3}',
        '{"system_text": "", "tool_tags": "both"}',
        '{"system_text": "", "environment": {"source": 3}}',
    ],
)
def test_a_damaged_file_is_said(folder: Path, content: str) -> None:
    (folder / FORMAT_FILE).write_text(content)
    with pytest.raises(UserError, match=FORMAT_FILE):
        load_chat(folder)


def test_the_template_of_training_is_that_of_the_folder(folder: Path) -> None:
    own = "{% for message in messages %}{{ message['content'] + '<|im_end|>' }}{% endfor %}"
    (folder / TEMPLATE_FILE).write_text(own)
    trained = load_chat(folder, "qwen")
    assert load_chat(folder).prompt_text("q", ()) != trained.prompt_text("q", ())
    write_format(folder, trained, EnvironmentSection())
    assert load_chat(folder).prompt_text("q", ()) == trained.prompt_text("q", ())
    # Programs that know no chat_template.jinja find it where they look.
    (folder / TEMPLATE_FILE).unlink()
    assert load_chat(folder).prompt_text("q", ()) == trained.prompt_text("q", ())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"eos_token_id": "x"}'])
def test_damaged_generation_settings_are_named(folder: Path, content: bytes) -> None:
    (folder / "generation_config.json").write_bytes(content)
    with pytest.raises(UserError, match=r"generation_config\.json"):
        load_chat(folder)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]"])
def test_a_tokenizer_that_cannot_be_loaded_is_said(folder: Path, file: str, content: bytes) -> None:
    (folder / file).write_bytes(content)
    with pytest.raises(UserError, match="holds no tokenizer that can be loaded"):
        load_chat(folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b'{"model_type": "nosuch"}'),
        ("config.json", b"{}"),
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff\xfe"),
        ("config.json", None),
    ],
)
def test_weights_that_cannot_be_loaded_are_said(folder: Path, file: str, content: bytes | None) -> None:
    """None: a config.json that does not belong to the weights."""
    other = json.dumps(json.loads((folder / "config.json").read_text()) | {"hidden_size": 32}).encode()
    (folder / file).write_bytes(other if content is None else content)
    with pytest.raises(UserError, match=re.escape(f"model: {folder} cannot be loaded")):
        load_model(folder, torch.device("cpu"), torch.float32)
