"""SmolLM2 itself: exact tokens on a real vocabulary, and `rstar2 solve` from the embedded engine."""

import json
from pathlib import Path

import pytest
from fake_openai_server import FakeServer, serving
from typer import Typer
from typer.testing import CliRunner

from rstar2.agent import Agent, ChatFormat, HfTokenizer, Transcript
from rstar2.agent.chat_template import ASSISTANT_OPENING, SYSTEM_TEXT
from rstar2.cli.chat import chat_command
from rstar2.cli.main import app
from rstar2.cli.solve import solve_command
from rstar2.engine.scripted import ScriptedEngine, replies
from rstar2.records import ToolStatus, Trace
from rstar2.records.codec import decode

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

QUESTIONS = ["Two  spaces,\n\ntwo lines?", "Ünïcode 漢字 🙂 12345?", "<|im_end|>"]


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> HfTokenizer:
    return HfTokenizer.load(smollm2)


async def test_a_conversation_has_the_ids_of_one_tokenization(tokenizer: HfTokenizer) -> None:
    chat = ChatFormat.of(tokenizer)
    assert chat.end_of_turn == "<|im_end|>"
    said = ["I add\n\n them. ", "  It is 42.\n", "Bye"]
    engine = ScriptedEngine(replies(said), tokenizer, chat.end_of_turn_id)
    transcript = Transcript.start(chat, QUESTIONS[0], [])
    for question in QUESTIONS[1:]:
        transcript, _ = await Agent(engine, chat).converse(transcript, [], session="s")
        transcript = transcript.with_user_turn(chat, question)
    messages = [{"role": "system", "content": SYSTEM_TEXT}]
    for question, answer in zip(QUESTIONS, said, strict=True):
        messages.append({"role": "user", "content": chat.harmless(question)})
        messages.append({"role": "assistant", "content": ASSISTANT_OPENING + answer})
    rendering = tokenizer.render(messages[:-1]) + ASSISTANT_OPENING
    assert tokenizer.decode(transcript.token_ids) == rendering
    assert list(transcript.token_ids) == tokenizer.encode(rendering)


def solve(*arguments: str, problem: str = "What is 6 * 7?") -> Trace:
    alone = Typer()
    alone.command()(solve_command)
    result = CliRunner().invoke(alone, [problem, "--json", *arguments])
    assert result.exit_code in (0, 1), (result.stderr, result.exception)
    return decode(Trace, result.stdout.strip().encode())


def test_solve_from_the_embedded_engine(tokenizer: HfTokenizer) -> None:
    trace = solve("--model", "smollm2-135m", "--max-tokens", "16", "--temperature", "0")
    again = solve("--model", "smollm2-135m", "--max-tokens", "16", "--temperature", "0")
    assert trace.token_ids == again.token_ids
    assert 0 < trace.num_response_tokens <= 16
    assert len(trace.turns[0].log_probs) == len(trace.turns[0].token_ids)
    assert all(value <= 0 for value in trace.turns[0].log_probs)
    assert tokenizer.decode(trace.token_ids) == trace.text
    assert trace.model == "smollm2-135m"


@pytest.mark.usefixtures("smollm2")
@pytest.mark.parametrize(
    ("problem", "answer"),
    [
        ("What is 48271 * 69621?", "3360675291"),
        ("What is the greatest common divisor of 36036 and 23100?", "924"),
        ("What is the sum of all integers from 17 to 4711?", "11098980"),
    ],
)
def test_the_default_is_an_agent_that_computes_with_python(problem: str, answer: str) -> None:
    trace = solve("--temperature", "0", problem=problem)
    assert trace.model == "smollm2-135m-agent"
    assert trace.answer == answer
    assert [result.status for result in trace.results] == [ToolStatus.OK]


@pytest.mark.usefixtures("smollm2")
def test_the_report_s_protocol_is_cut_to_what_the_model_has_room_for(tmp_path: Path) -> None:
    arguments = [
        "eval",
        "--bench",
        "procedural:gcd",
        "--samples",
        "1",
        "--problems",
        "3",
        "--run",
        str(tmp_path / "run"),
    ]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "smollm2-135m-agent has room for 8,192 tokens" in result.stderr
    found = json.loads(result.stdout)
    assert found["results"]["procedural:gcd"]["accuracy"] == 1.0
    assert "response tokens 8,192 (report: 30,720)" in found["deviations"]


def test_solve_through_a_server_in_token_ids(smollm2: Path, tokenizer: HfTokenizer) -> None:
    call = json.dumps(
        {"name": "execute_python_code_with_standard_io", "arguments": {"code": "print(6 * 7)", "input": ""}}
    )
    texts = [f"So.</reason><tool_call>{call}</tool_call><|im_end|>", r"<answer>\boxed{42}</answer><|im_end|>"]
    with serving(FakeServer(token_replies=[tokenizer.encode(text) for text in texts])) as server:
        trace = solve("--base-url", server.url, "--tokenizer", str(smollm2))
    assert trace.answer == "42"
    assert tuple(server.requests[1]["prompt"]) == trace.token_ids[: -len(trace.turns[1].token_ids)]
    assert tokenizer.decode(trace.token_ids) == trace.text


@pytest.mark.usefixtures("smollm2")
def test_chat_with_the_default_model_uses_the_tool_that_it_was_taught() -> None:
    alone = Typer()
    alone.command()(chat_command)
    questions = "What is 48271 * 69621?\nWhat is the greatest common divisor of 36036 and 23100?\n"
    result = CliRunner().invoke(alone, ["--temperature", "0"], input=questions)
    assert result.exit_code == 0, (result.stderr, result.exception)
    for answer in ("3360675291", "924"):
        assert "execute_python_code_with_standard_io: ok" in result.stdout
        assert f"\\boxed{{{answer}}}" in result.stdout
