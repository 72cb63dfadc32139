"""`rstar2 solve` and `rstar2 chat`, with scripted replies and with a server that behaves well or badly."""

import io
import json
import sys
from pathlib import Path

import pytest
import typer
from fake_openai_server import FakeServer, serving

from rstar2.agent import load_chat, write_format
from rstar2.cli.chat import chat_command
from rstar2.cli.output import ExitCode, errors_as_sentences
from rstar2.cli.solve import solve_command
from rstar2.config import EnvironmentSection, parse_recipe, to_toml
from rstar2.models.tiny import TinySizes, build_tiny
from rstar2.records import Outcome, RunDirectory, Trace
from rstar2.records.codec import decode

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

TOOL = "execute_python_code_with_standard_io"
CALL = (
    "I multiply.</reason>\n<tool_call>\n"
    + json.dumps({"name": TOOL, "arguments": {"code": "print(6 * 7)", "input": ""}})
    + "\n</tool_call>"
)
ANSWER = "So it is.</reason>\n<answer>\\boxed{42}</answer>"


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, as a terminal would see them."""
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command("solve")(solve_command)
        app.command("chat")(chat_command)
        with pytest.raises(SystemExit) as end, errors_as_sentences():
            app(arguments)
        printed = self._capsys.readouterr()
        code = end.value.code
        return int(code) if code is not None else 0, printed.out, printed.err


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.txt"
    path.write_text(f"{CALL}\n===\n{ANSWER}\n")
    return str(path)


def test_solve_streams_reasoning_code_results_and_the_answer(shell: Shell, script: str) -> None:
    code, out, err = shell("solve", "What is 6 * 7?", "--script", script)
    assert code == ExitCode.OK
    places = [out.index(text) for text in ("I multiply.", TOOL, "print(6 * 7)", "ok, ", "\n42\n", "So it is.", "boxed")]
    assert places == sorted(places)
    assert "<tool_call>" not in out
    assert "arguments" not in out
    assert err.endswith("answer: 42\n")


def test_solve_as_json_is_the_trace_and_nothing_else(shell: Shell, script: str) -> None:
    code, out, _ = shell("solve", "What is 6 * 7?", "--script", script, "--json")
    trace = decode(Trace, out.strip().encode())
    assert (code, trace.outcome, trace.answer) == (ExitCode.OK, Outcome.ANSWERED, "42")
    assert trace.results[0].text == "42"
    assert "What is 6 * 7?" in trace.prompt_text


def test_solve_reads_standard_input(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.txt"
    script.write_text(ANSWER)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Six times seven?\n"))
    _, out, _ = shell("solve", "-", "--script", str(script), "--json")
    assert "Six times seven?" in decode(Trace, out.strip().encode()).prompt_text


def test_solve_with_a_notebook_and_with_a_tool_of_ones_own(shell: Shell, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "table_search_tool.py"
    script = tmp_path / "script.txt"
    turns = [
        '<tool_call>{"name": "jupyter_code", "arguments": {"code": "x = 6"}}</tool_call>',
        '<tool_call>{"name": "jupyter_code", "arguments": {"code": "x * 7"}}</tool_call>'
        '<tool_call>{"name": "search_table", "arguments": {"words": "tungsten"}}</tool_call>',
        ANSWER,
    ]
    script.write_text("\n=====\n".join(turns))
    code, out, err = shell("solve", "?", "--script", str(script), "--tool", "jupyter_code", "--tool", str(example))
    assert code == ExitCode.OK, err
    assert "\n42\n" in out
    assert "symbol: W" in out


def test_no_answer_is_exit_code_1_and_says_why(shell: Shell, script: str, tmp_path: Path) -> None:
    code, _, err = shell("solve", "?", "--script", script, "--max-tokens", "20")
    assert (code, err) == (ExitCode.NO, "no answer: the budget of 20 tokens ran out in turn 1\n")
    silent = tmp_path / "silent.txt"
    silent.write_text("I do not know.")
    code, _, err = shell("solve", "?", "--script", str(silent))
    assert (code, err) == (ExitCode.NO, "no answer: the model wrote no <answer> with a box in it\n")


def test_chat_keeps_the_conversation_and_the_notebook(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.txt"
    turns = [
        '<tool_call>{"name": "jupyter_code", "arguments": {"code": "x = 40"}}</tool_call>',
        "It is set.",
        '<tool_call>{"name": "jupyter_code", "arguments": {"code": "print(x + 2)"}}</tool_call>',
        "There.",
    ]
    script.write_text("\n===\n".join(turns))
    monkeypatch.setattr(sys, "stdin", io.StringIO("Set x.\n\nAdd 2.\n"))
    code, out, err = shell("chat", "--script", str(script), "--tool", "jupyter_code")
    assert (code, err) == (ExitCode.OK, "")
    assert out.index("It is set.") < out.index("\n42\n") < out.index("There.")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that knows a notebook and nothing else."""
    folder = tmp_path_factory.mktemp("model")
    build_tiny(folder, "llama", TinySizes(1, 16, 2, 1, 400, 64), ["some words"], seed=0)
    write_format(folder, load_chat(folder), EnvironmentSection(tools=("jupyter_code",)))
    return str(folder)


@pytest.mark.parametrize("verb", ["solve", "chat"])
def test_a_model_is_given_the_tool_that_it_was_trained_with(
    shell: Shell, tmp_path: Path, trained: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = "</reason><tool_call>" + json.dumps({"name": "jupyter_code", "arguments": {"code": "6 * 7"}})
    script = tmp_path / "script.txt"
    script.write_text(f"{notebook}</tool_call>\n===\n{ANSWER}")
    question = ["Six times seven?"] if verb == "solve" else []
    monkeypatch.setattr(sys, "stdin", io.StringIO("Six times seven?\n"))
    _, out, err = shell(verb, *question, "--script", str(script), "--model", trained)
    assert "jupyter_code: ok" in out, err
    assert "trained with" not in err
    monkeypatch.setattr(sys, "stdin", io.StringIO("Six times seven?\n"))
    _, out, err = shell(verb, *question, "--script", str(script), "--model", trained, "--tool", TOOL)
    assert "was trained with the tool jupyter_code: it may not know how to do without, or to call another" in err
    assert "jupyter_code: unknown tool" in out


def test_a_recipe_names_model_tool_and_limits(shell: Shell, tmp_path: Path, trained: str) -> None:
    notebook = json.dumps({"name": "jupyter_code", "arguments": {"code": "print('x' * 5000)"}})
    (tmp_path / "script.txt").write_text(f"</reason><tool_call>{notebook}</tool_call>\n===\n{ANSWER}")
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f'''name = "mine"
[model]
name = "{trained}"
[engine]
kind = "scripted"
script = "{tmp_path / "script.txt"}"
[agent]
system_text = "Be brief."
max_tool_output_tokens = 16
'''
    )
    code, out, err = shell("solve", "?", "--recipe", str(recipe), "--json")
    trace = decode(Trace, out.strip().encode())
    assert (code, trace.answer) == (ExitCode.OK, "42"), err
    assert "Be brief." in trace.prompt_text
    assert len(trace.results[0].text) < 1000, "cut to the recipe's tokens"
    code, _, err = shell("solve", "?", "--recipe", str(recipe), "--max-tokens", "20")
    assert code == ExitCode.NO, err
    code, _, err = shell("solve", "?", "--recipe", str(recipe), "--set", "engine.kind=openai")
    assert code == ExitCode.USAGE
    assert "--set engine.kind=openai: engine.kind openai needs engine.base_url" in err


@pytest.mark.parametrize("name", ["", "recipe.toml"])
def test_a_training_run_answers_with_its_final_model(shell: Shell, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    recipe = parse_recipe(
        'name = "mine"\n[model]\nname = "tiny:llama"\ncontext_tokens = 256\n[agent]\nsystem_text = ""'
    )
    with RunDirectory.create(run, verb="train", recipe_toml=to_toml(recipe), seed=0):
        build_tiny(run / "final", "llama", TinySizes(1, 16, 2, 1, 400, 512), ["some words"], seed=0)
    code, out, err = shell("solve", "?", "--recipe", str(run / name), "--max-tokens", "16", "--threads", "1", "--json")
    trace = decode(Trace, out.strip().encode())
    assert code == ExitCode.NO, err
    assert trace.model == str(run / "final")
    assert 0 < trace.num_sampled_tokens <= 16


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["", "--script", "x"], "error: the problem is empty"),
        (["?", "--script", "absent.txt"], "error: the script absent.txt cannot be read"),
        (["?", "--script", "x", "--base-url", "http://h"], "error: --script and --base-url exclude each other"),
        (["?", "--tokenizer", "x"], "error: --tokenizer is for a server"),
        (["?", "--api-key-env", "X"], "error: --api-key-env is for a server"),
        (["?", "--model", "no-such-model"], "error: 'no-such-model' is neither a model folder nor a name"),
        (["?", "--base-url", "localhost:8000", "--model", "m"], "error: --base-url: 'localhost:8000' is not a URL"),
        (["?", "--base-url", "http://127.0.0.1:1/v1", "--model", "m"], "failed: the engine failed: turn 1 failed 3"),
        (["?", "--base-url", "http://127.0.0.1:1/v1"], "failed: cannot connect to http://127.0.0.1:1/v1"),
        (["?", "--sandbox", "http://127.0.0.1:1", "--model", "absent"], "failed: no result from the sandbox at http"),
        (["?", "--sandbox", "127.0.0.1:1"], 'error: --sandbox cannot be the text "127.0.0.1:1"'),
        (["?", "--threads", "99999"], "error: --threads of 99999 is more than the"),
        (["?", "--recipe", "absent.toml"], "error: absent.toml: there is no such file"),
    ],
)
def test_mistakes_are_sentences(shell: Shell, arguments: list[str], sentence: str) -> None:
    code, _, err = shell("solve", *arguments)
    assert code == (ExitCode.INFRASTRUCTURE if sentence.startswith("failed") else ExitCode.USAGE)
    assert err.startswith(sentence)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [("python", "'python' is neither"), ("absent.py", "absent.py"), (__file__, "defines no make_tool")],
)
def test_a_tool_that_is_none_is_a_sentence(shell: Shell, script: str, tool: str, sentence: str) -> None:
    code, _, err = shell("solve", "?", "--script", script, "--tool", tool)
    assert (code, err.count("\n")) == (ExitCode.USAGE, 1)
    assert sentence in err


def tool_source(call: str = "return ToolResult(ToolStatus.OK, 'x')", is_async: bool = True) -> str:
    return f"""from rstar2.agent import ToolSchema
from rstar2.records import ToolResult, ToolStatus
class Mine:
    schema = ToolSchema("mine", "Mine.", {{"type": "object", "properties": {{}}}})
    {"async " if is_async else ""}def call(self, arguments):
        {call}
    async def close(self):
        pass
def make_tool():
    return Mine()
"""


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def make_tool(:\n", "{file}, line 1: invalid syntax"),
        ("x = 1\nimport nosuch_module\n", "{file}, line 2: No module named 'nosuch_module'; install nosuch_module"),
        ("x = 1\n1 / 0\n", "{file}, line 2: ZeroDivisionError: division by zero"),
        ("exit(3)\n", "{file}, line 1: SystemExit: 3"),
        ("def make_tool():\n    raise KeyError('TOKEN')\n", "{file}, line 2: KeyError: 'TOKEN'"),
        ("def make_tool(size):\n    pass\n", "missing 1 required positional argument"),
        ("def make_tool():\n    pass\n", "{file}, line 1: what it returns has no schema, so it is no tool"),
        (tool_source().replace('"type": "object"', '"type": "list"'), "{file}, line 4: tool mine: parameters.type"),
        (
            tool_source().replace("schema = ToolSchema", "schema = len"),
            "{file}, line 4: TypeError: len() takes exactly",
        ),
        (tool_source().replace("schema = ", "schema = 3 or "), "returns has a schema of type int: make it a"),
        (tool_source(is_async=False), "has a call that is not async: write `async def call(…)`"),
        (
            tool_source().replace("(self, arguments)", "(self)"),
            "cannot be asked to call (too many positional arguments)",
        ),
    ],
)
def test_a_mistake_in_a_tool_s_file_is_a_sentence(
    shell: Shell, script: str, tmp_path: Path, source: str, sentence: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    code, _, err = shell("solve", "?", "--script", script, "--tool", str(file))
    assert (code, err.count("\n")) == (ExitCode.USAGE, 1), err
    assert sentence.format(file=file) in err


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("return 'forty-two'", "TypeError: its call returned a str, not a ToolResult"),
        ("pass", "TypeError: its call returned a NoneType, not a ToolResult"),
        ("return ToolResult('ok', 'x')", "TypeError: its call returned a ToolResult of str and str"),
        ("return ToolResult(ToolStatus.OK, 42)", "TypeError: its call returned a ToolResult of ToolStatus and int"),
        ("raise KeyError('TOKEN')", "KeyError: 'TOKEN'"),
    ],
)
def test_a_tool_that_fails_is_a_fault_that_names_it(shell: Shell, tmp_path: Path, call: str, sentence: str) -> None:
    file, script = tmp_path / "mine.py", tmp_path / "script.txt"
    file.write_text(tool_source(call))
    script.write_text('</reason><tool_call>{"name": "mine", "arguments": {}}</tool_call>')
    code, _, err = shell("solve", "?", "--script", str(script), "--tool", str(file))
    assert code == ExitCode.INFRASTRUCTURE
    assert f"tool mine failed: {sentence}" in err
    assert err.count("\n") == 1


def test_a_tool_that_cannot_be_closed_is_a_fault_that_names_it(shell: Shell, script: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(tool_source().replace("        pass", "        raise OSError('gone')"))
    code, _, err = shell("solve", "?", "--script", script, "--tool", str(file))
    assert (code, err) == (ExitCode.INFRASTRUCTURE, "failed: tool mine could not be closed: OSError: gone\n")


def test_a_model_without_a_chat_template_is_a_sentence(shell: Shell, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab={"a": 0}, merges=[])))
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    code, _, err = shell("solve", "?", "--model", str(tmp_path))
    assert code == ExitCode.USAGE
    assert f"error: model {tmp_path.name} has no chat template" in err
    assert "--template qwen" in err


def test_solve_through_a_server(shell: Shell) -> None:
    # The second turn starts as the system text asks it to, the first as the prompt would have it continued.
    with serving(FakeServer([CALL, f"\n<reason>{ANSWER}"])) as server:
        code, out, _ = shell("solve", "What is 6 * 7?", "--base-url", server.url, "--temperature", "0", "--json")
    trace = decode(Trace, out.strip().encode())
    assert (code, trace.answer, trace.model) == (ExitCode.OK, "42", "fake-model")
    first, second = server.requests
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["messages"][1]["content"] == "What is 6 * 7?"
    assert first["temperature"] == 0
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["messages"][2]["content"] == "<reason>" + CALL
    assert second["messages"][3]["content"] == "<tool_response>\n42\n</tool_response>"
    assert second["max_tokens"] < first["max_tokens"]
    assert trace.turns[1].text == ANSWER + "<|im_end|>"
    assert trace.turns[0].log_probs == ()


def test_a_key_a_model_and_a_limit_of_another_name(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEY", "secret")
    fake = FakeServer([ANSWER], api_key="secret", models=["a", "b"], mishap="other limit")
    with serving(fake) as server:
        code, _, err = shell("solve", "?", "--base-url", server.url, "--api-key-env", "FAKE_KEY")
        assert (code, err) == (
            ExitCode.USAGE,
            f"error: --model is needed: which of the models of {server.url}? (it has a, b)\n",
        )
        code, _, err = shell("solve", "?", "--base-url", server.url, "--api-key-env", "FAKE_KEY", "--model", "b")
        assert code == ExitCode.OK, err
    assert "max_tokens" not in server.requests[-1]
    assert server.requests[-1]["max_completion_tokens"] == 4096


@pytest.mark.parametrize(
    ("server", "arguments", "code", "sentence"),
    [
        (FakeServer(api_key="k"), ["--model", "fake-model"], 2, "refused the key (401: Incorrect API key provided)"),
        (FakeServer(api_key="k"), [], 2, "refused the key (401: Incorrect API key provided)"),
        (FakeServer(), ["--model", "other"], 2, "has no model 'other' (The model `other` does not exist.)"),
        (FakeServer(mishap="too long"), [], 2, "refuses the request (400: This model's maximum context length"),
        (FakeServer(mishap="web page"), [], 2, "does not answer like an OpenAI-compatible server"),
        (FakeServer(mishap="garbage"), [], 2, "does not answer like an OpenAI-compatible server"),
        (FakeServer(mishap="busy"), [], 3, "is not able to answer now (429: slow down)"),
        (FakeServer([ANSWER] * 3, mishap="dies"), [], 3, "was lost in the middle of an answer"),
        (FakeServer([ANSWER] * 3, mishap="stops"), [], 3, "ended an answer in the middle"),
        (FakeServer([ANSWER] * 3, mishap="error event"), [], 3, "failed: out of memory"),
    ],
    ids=lambda value: value.mishap if isinstance(value, FakeServer) else None,
)
def test_a_server_that_fails_is_one_clear_sentence(
    shell: Shell, server: FakeServer, arguments: list[str], code: int, sentence: str
) -> None:
    with serving(server):
        found, _, err = shell("solve", "?", "--base-url", server.url, *arguments)
    assert found == code
    assert sentence in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_wrong_path_is_a_sentence(shell: Shell) -> None:
    with serving(FakeServer([ANSWER])) as server:
        url = server.url.removesuffix("/v1")
        code, _, err = shell("solve", "?", "--base-url", url, "--model", "fake-model")
    assert (code, err) == (
        ExitCode.USAGE,
        f"error: there is no /chat/completions at {url}: check --base-url, does it lack a /v1?\n",
    )


@pytest.mark.parametrize("mishap", ["dies", "stops", "error event", "busy"])
def test_a_server_that_fails_once_is_asked_again(shell: Shell, mishap: str) -> None:
    with serving(FakeServer([ANSWER] * 2, mishap=mishap, num_mishaps=1)) as server:
        code, out, err = shell("solve", "?", "--base-url", server.url)
    assert code == ExitCode.OK, err
    assert "[the turn starts again: " in out
    assert len(server.requests) == 2
