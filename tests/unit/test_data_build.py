"""The report's sets from files as each source publishes them: every row kept or counted, a kill costs nothing, and the
64-GPU recipe takes the result as it is."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loopback_hub import serving
from train_models import build_model, make_chat
from typer.testing import CliRunner, Result

from build_samples import (
    GLAIVE,
    NEMOTRON_CHAT,
    SHARED_WITH_A_TEST,
    TOOLACE,
    apigen_row,
    open_math_row,
    toolace_row,
    write_rows,
    write_sources,
)
from rstar2.agent.chat_template import SYSTEM_TEXT
from rstar2.cli.main import app
from rstar2.config import DataSet
from rstar2.data import Conversation, load_conversations
from rstar2.data.build import BuildOptions, LeftOut, LeftOutError, build_sft, sources_of
from rstar2.data.build.bracket_calls import is_calls, parse_calls
from rstar2.data.rows import Row
from rstar2.errors import InfrastructureError, UserError
from rstar2.train.learning.sft import render_all

pytestmark = pytest.mark.unit

LOOK_UP_CALL = '{"name": "look_up", "arguments": {}}'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every source; the working directory is empty, and the test sets have one problem each."""
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RSTAR2_DATA", str(tmp_path / "tests"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    for name in ("math500", "aime24", "aime25", "hmmt_feb25"):
        problem = SHARED_WITH_A_TEST if name == "math500" else f"A problem of {name} alone."
        write_rows(tmp_path / "tests" / f"{name}.jsonl", [{"id": name, "problem": problem, "answer": "1"}])
    return write_sources(tmp_path / "sources")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", "build", *map(str, arguments)])


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def counts(report: dict[str, Any]) -> dict[str, tuple[int, dict[str, int], int]]:
    return {each["name"]: (each["num_in"], each["left_out"], each["num_kept"]) for each in report["sources"]}


def test_conversations_of_every_source_and_a_count_for_every_row(sources: Path) -> None:
    result = call("sft", "-o", "data", "--from", sources, "--json")
    assert result.exit_code == 0, result.output
    assert counts(json.loads(result.stdout)) == {
        "toolace": (4, {"bad_tools": 1, "bad_call": 1, "unknown_tool": 1}, 1),
        "apigen_mt": (2, {"unknown_tool": 1}, 1),
        "glaive": (4, {"bad_call": 1, "repeated": 1}, 2),
        "magicoder": (4, {"not_python": 1, "no_program": 1, "broken_program": 1}, 1),
        "tulu": (2, {"unreadable": 1}, 1),
        "nemotron_chat": (2, {"reasoning": 1}, 1),
    }
    report = json.loads(Path("data/build-sft.json").read_text())
    assert report == json.loads(result.stdout)
    assert [(each["file"], each["num_rows"], each["num_in_report"]) for each in report["sets"]] == [
        ("sft-function-calls.jsonl", 5, 165_000),
        ("sft-instructions.jsonl", 1, 30_000),
        ("sft-chat.jsonl", 1, 27_000),
    ]
    assert report["sources"][0]["examples"]["unknown_tool"] == ["data.json, item 2: Unknown API"]
    assert report["sources"][0]["commit"] is None, "the files are the user's own, whatever they say they are"
    assert "sft-chat.jsonl: 1 rows (the report has 27,000)" in result.stderr


def test_what_is_made_of_the_rows(sources: Path) -> None:
    build_sft(Path("data"), BuildOptions(from_folder=sources))
    toolace, apigen, glaive, glaive_plain, magicoder = rows_of(Path("data/sft-function-calls.jsonl"))
    assert toolace["messages"] == [
        {"role": "system", "content": "Today is 2024-05-01."},
        {"role": "user", "content": "Which stocks gained most?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                _call("Market Trends API", {"kind": "gainers, all", "$top": 2}),
                _call("User Feed (Video) V2", {}),
            ],
        },
        {"role": "tool", "content": '{"first":"A"}'},
        {"role": "tool", "content": "[]"},
        {"role": "assistant", "content": "A gained most."},
    ]
    parameters = toolace["tools"][0]["function"]["parameters"]
    assert (parameters["type"], parameters["properties"]["$top"]) == ("object", {"type": "integer"})
    assert [message["role"] for message in apigen["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert apigen["messages"][0]["content"].startswith("# Retail policy")
    assert apigen["messages"][2]["tool_calls"] == [_call("look_up", {"id": "#W1"})]
    assert [tool["function"]["name"] for tool in glaive["tools"]] == ["get_news", "look_up"]
    assert glaive["messages"][2]["tool_calls"] == [_call("get_news", {"country": "it's the US"})]
    assert glaive["messages"][3:] == [
        {"role": "tool", "content": '{"headlines": ["B"]}'},
        {"role": "assistant", "content": "The headline is B."},
    ]
    assert glaive_plain["messages"][0]["content"].endswith("with no access to external functions.")
    arguments = {"code": "print(sum(range(10)))\n", "input": ""}
    assert magicoder["messages"][1]["tool_calls"] == [_call("execute_python_code_with_standard_io", arguments)]
    (chat,) = rows_of(Path("data/sft-chat.jsonl"))
    assert [message["content"] for message in chat["messages"]] == [
        "You are a helpful assistant.",
        "What is a fjord?",
        "A narrow inlet of the sea.",
    ]


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_problems_of_every_source_and_a_count_for_every_row(sources: Path) -> None:
    result = call("rl", "-o", "data", "--from", sources, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert counts(report) == {
        "dapo": (5, {"not_positive": 2, "contaminated": 1, "not_english": 1}, 1),
        "open_math_reasoning": (5, {"voted_answer": 1, "repeated": 1, "not_integer": 1, "duplicate": 1}, 1),
        "project_euler": (2, {"no_answer": 1}, 1),
    }
    assert report["against"] == ["math500", "aime24", "aime25", "hmmt_feb25"]
    kept = rows_of(Path("data/rl-42k.jsonl"))
    assert [(row["source"], row["problem"], row["answer"]) for row in kept] == [
        ("dapo", "What is 3+4?", "7"),
        ("open_math_reasoning", "What is 5 times 5?", "25"),
        ("project_euler", "Find the sum of all multiples below a thousand.", "233168"),
    ]
    rejected = {row["problem"]: row["reason"] for row in rows_of(Path("data/rl-42k.rejects.jsonl"))}
    assert rejected[SHARED_WITH_A_TEST] == "contaminated" and rejected["What is $3 + 4$?"] == "duplicate"


def test_the_recipe_for_64_gpus_takes_the_files_as_they_are(sources: Path) -> None:
    assert call("sft", "-o", "data", "--from", sources).exit_code == 0
    assert call("rl", "-o", "data", "--from", sources).exit_code == 0
    result = CliRunner().invoke(app, ["train", "qwen3-14b-64gpu", "--dry-run"])
    assert result.exit_code == 0, (result.output, result.exception)
    for name in ("function-calls", "instructions", "chat"):
        path = f"data/sft-{name}.jsonl"
        shown = CliRunner().invoke(app, ["data", "validate", path, "--json"])
        assert json.loads(shown.stdout)[path]["failures"] == []


def test_every_conversation_is_rendered_as_the_agent_writes_it(sources: Path, tmp_path: Path) -> None:
    build_sft(Path("data"), BuildOptions(from_folder=sources))
    files = sorted(Path("data").glob("*.jsonl"))
    talks = [talk for path in files for talk in load_conversations("x", DataSet(source=f"file:{path}"), seed=0)]
    chat = make_chat(build_model(tmp_path / "model"), SYSTEM_TEXT)
    examples, num_long = render_all(talks, chat, max_tokens=100_000)
    assert (len(examples), num_long) == (7, 0)
    texts = {
        talk.source: chat.tokenizer.decode(example.token_ids) for talk, example in zip(talks, examples, strict=True)
    }
    assert (
        '<tool_call>\n{"name": "Market Trends API", "arguments": {"kind": "gainers, all", "$top": 2}}'
        in texts["toolace"]
    )
    assert SYSTEM_TEXT in texts["magicoder"] and '"code": "print(sum(range(10)))' in texts["magicoder"]
    assert not any(SYSTEM_TEXT in text for source, text in texts.items() if source != "magicoder")


@pytest.mark.parametrize(
    ("turns", "outcome"),
    [
        ([("human", "a"), ("gpt", "b"), ("gpt", "c")], ["system", "user", "assistant"]),
        ([("human", "a"), ("gpt", "b"), ("human", "c"), ("observation", "d")], ["system", "user", "assistant"]),
        ([("human", "a"), ("function_call", LOOK_UP_CALL), ("gpt", "b")], LeftOut.FORM),
        ([("human", "a"), ("observation", "b"), ("gpt", "c")], LeftOut.FORM),
        ([("human", "a"), ("gpt", " ")], LeftOut.FORM),
        ([("gpt", "a")], LeftOut.FORM),
    ],
)
def test_turns_in_an_order_that_can_be_learnt_from(turns: list[tuple[str, str]], outcome: list[str] | LeftOut) -> None:
    (source,) = sources_of("sft", ["apigen_mt"])
    row = Row(apigen_row(*turns), "row 1")
    if isinstance(outcome, LeftOut):
        with pytest.raises(LeftOutError) as raised:
            source.convert(row)
        assert raised.value.reason is outcome
    else:
        made = source.convert(row)
        assert isinstance(made, Conversation)
        assert [message["role"] for message in made.messages] == outcome


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("""'{"a": "it's"}'""", {"a": "it's"}),
        (r"""'{"a": "it\'s", "b": 1}'""", {"a": "it's", "b": 1}),
        ("""'{"a": "x\ny"}'""", {"a": "x\ny"}),
        ("""'{}'""", {}),
        ("""{"a": [1]}""", {"a": [1]}),
        (r'''"{\"a\": 1}"''', {"a": 1}),
    ],
)
def test_the_ways_glaive_writes_arguments(arguments: str, read: dict[str, Any]) -> None:
    (source,) = sources_of("sft", ["glaive"])
    chat = (
        'USER: News?\n\n\nASSISTANT: One moment. <functioncall> {"name": "get_news", "arguments": '
        + arguments
        + "} <|endoftext|>"
    )
    made = source.convert(Row({**GLAIVE[2], "chat": chat}, "row 1"))
    assert isinstance(made, Conversation)
    assert made.messages[-1] == {"role": "assistant", "content": "One moment.", "tool_calls": [_call("get_news", read)]}


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        ("""USER: a\n\n\nASSISTANT: <functioncall> {"name": "get_news", "arguments": '[1]'}""", LeftOut.BAD_CALL),
        (
            """USER: a\n\n\nASSISTANT: <functioncall> {"name": "get_news", "arguments": '{"a": Infinity}'}""",
            LeftOut.BAD_CALL,
        ),
        ("""USER: a\n\n\nASSISTANT: <functioncall> {"name": "get_news", "parameters": {}}""", LeftOut.BAD_CALL),
        ("""USER: a\n\n\nASSISTANT: <functioncall> {"name": "get_news", "arguments": '{}'}}""", LeftOut.BAD_CALL),
        ("""USER: a\n\n\nASSISTANT: <functioncall> {"name": "get-news", "arguments": '{}'}""", LeftOut.UNKNOWN_TOOL),
        ("USER: a\n\n\nASSISTANT: New in <|endoftext|>\n\n\nASSISTANT: 1. b <|endoftext|>", LeftOut.FORM),
        ("USER: a \nASSISTANT: b <|endoftext|>\n\n\nASSISTANT: c <|endoftext|>", LeftOut.FORM),
        ("USER: a\n\n\nASSISTANT: b <|endoftext|>\n\n\nFUNCTION RESPONSE: {}\n\n\nASSISTANT: c", LeftOut.FORM),
        ("ASSISTANTS: a", LeftOut.FORM),
    ],
)
def test_glaive_rows_that_are_damaged(chat: str, reason: LeftOut) -> None:
    (source,) = sources_of("sft", ["glaive"])
    with pytest.raises(LeftOutError) as raised:
        source.convert(Row({**GLAIVE[2], "chat": chat}, "row 1"))
    assert raised.value.reason is reason


def test_glaive_turns_with_one_empty_line_between_them() -> None:
    (source,) = sources_of("sft", ["glaive"])
    made = source.convert(
        Row(
            {
                **GLAIVE[1],
                "chat": "USER: a\nb\n\nASSISTANT: c <|endoftext|>\n\nUSER: d\n\nASSISTANT: e\n\nf <|endoftext|>",
            },
            "",
        )
    )
    assert isinstance(made, Conversation)
    assert [message["content"] for message in made.messages[1:]] == ["a\nb", "c", "d", "e\n\nf"]


def test_a_killed_build_goes_on_where_it_was(sources: Path) -> None:
    """Killed for good while it converts the third source: the first two are not converted again."""
    program = (
        "import os, signal, sys\n"
        "from contextlib import contextmanager\n"
        "from pathlib import Path\n"
        "from rstar2.data.build import BuildOptions, build_sft\n"
        "@contextmanager\n"
        "def counting(title, total):\n"
        "    def advance():\n"
        "        if 'glaive' in title: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    yield advance\n"
        "build_sft(Path('data'), BuildOptions(from_folder=Path(sys.argv[1]), counting=counting))\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(sources)], env=os.environ, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    assert not list(Path("data").glob("*.json*")), "no set and no report is there before it is complete"
    parts = {path.name: path.stat().st_mtime_ns for path in Path("data/.build").iterdir()}
    assert {name.partition("-")[0] for name in parts} == {"toolace", "apigen_mt"}
    again: dict[str, int] = {}
    report = build_sft(Path("data"), BuildOptions(from_folder=sources, counting=counting_into(again)))
    assert again == {"glaive": 4, "magicoder": 4, "tulu": 2, "nemotron_chat": 2}
    assert all(Path("data/.build", name).stat().st_mtime_ns == changed for name, changed in parts.items())
    fresh = build_sft(Path("fresh"), BuildOptions(from_folder=sources))
    assert fresh == report
    assert [path.read_bytes() for path in sorted(Path("fresh").glob("*.jsonl"))] == [
        path.read_bytes() for path in sorted(Path("data").glob("*.jsonl"))
    ]


def counting_into(counts: dict[str, int]) -> Callable[[str, int], Any]:
    @contextmanager
    def counting(title: str, _total: int) -> Iterator[Callable[[], None]]:
        name = title.removeprefix("converting ")
        counts[name] = 0

        def advance() -> None:
            counts[name] += 1

        yield advance

    return counting


def test_a_file_that_changed_is_converted_anew(sources: Path) -> None:
    options = BuildOptions(from_folder=sources, source_names=["toolace"])
    assert build_sft(Path("data"), options).sets[0].num_rows == 1
    more = toolace_row(("user", "Bye."), ("assistant", "Goodbye."))
    write_rows(sources / "toolace" / "data.json", [*TOOLACE, more])
    assert build_sft(Path("data"), options).sets[0].num_rows == 2
    assert len(list(Path("data/.build").glob("*.jsonl"))) == 1, "what is no longer used is removed"


def test_two_builds_do_not_write_into_one_folder(sources: Path) -> None:
    @contextmanager
    def counting(_title: str, _total: int) -> Iterator[Callable[[], None]]:
        with pytest.raises(InfrastructureError, match="another process"):
            build_sft(Path("data"), BuildOptions(from_folder=sources))
        yield lambda: None

    build_sft(Path("data"), BuildOptions(from_folder=sources, source_names=["tulu"], counting=counting))


def test_from_the_hub_a_source_is_downloaded_once_and_its_commit_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "home", monkeypatch) as hub:
        hub.repo = "nvidia/Llama-Nemotron-Post-Training-Dataset"
        content = "".join(json.dumps(row) + "\n" for row in NEMOTRON_CHAT).encode()
        hub.files = {"README.md": b"#", "SFT/chat/chat.jsonl": content}
        options = BuildOptions(source_names=["nemotron_chat"])
        (source,) = build_sft(Path("data"), options).sources
        assert (source.revision, source.commit, source.num_kept) == (None, hub.commit, 1)
        assert len(hub.ranges) == 1
        build_sft(Path("data"), options)
        assert len(hub.ranges) == 1
        hub.commit = "d" * 40
        pinned = BuildOptions(source_names=["nemotron_chat"], revisions={"nemotron_chat": hub.commit})
        (source,) = build_sft(Path("data"), pinned).sources
        assert (source.revision, source.commit) == (hub.commit, hub.commit)


def test_mistakes_are_sentences(sources: Path) -> None:
    for arguments, words in (
        (["--from", sources, "--sources", "toolbox"], "there is no source 'toolbox' of sft; there are toolace"),
        (["--from", "nowhere"], "--from: there is no folder nowhere"),
        (["--from", "tests"], "tests has no files of toolace: put those of Team-ACE/ToolACE into tests/toolace"),
        (["--from", sources, "--revision", "toolace"], "write SOURCE=COMMIT"),
        (["--from", sources, "--revision", "dapo=abc"], "'dapo', which is no source of this build"),
        (["--from", sources, "--against", "gsm8k"], "data set gsm8k is not on this machine"),
    ):
        result = call("sft", "-o", "data", *arguments)
        assert isinstance(result.exception, UserError) and words in str(result.exception)


def test_nothing_kept_is_a_no(sources: Path) -> None:
    write_rows(sources / "project_euler" / "euler" / "test-00000-of-00001.parquet", [open_math_row("Find x.", "x")])
    result = call("rl", "-o", "data", "--from", sources, "--sources", "project_euler")
    assert result.exit_code == 1, result.output
    assert "no_answer" in result.stdout


def test_conversations_are_decontaminated_where_it_is_asked_for(sources: Path) -> None:
    question = [{"id": "1", "problem": "What is a fjord?", "answer": "1"}]
    write_rows(sources.parent / "held-out.jsonl", question)
    options = BuildOptions(from_folder=sources, source_names=["nemotron_chat"], against=["held-out.jsonl"])
    (source,) = build_sft(Path("data"), options).sources
    assert source.left_out == {"reasoning": 1, "contaminated": 1}


def test_every_source_is_pinned_or_says_that_it_is_not() -> None:
    found = json.loads(call("sources", "--json").stdout)
    assert [each["name"] for each in found if each["revision"] is None] == ["nemotron_chat"]
    assert all(len(each["revision"] or "0" * 40) == 40 and each["licence"] for each in found)
    assert "Team-ACE/ToolACE" in call("sources").stdout


def test_problems_whose_files_are_the_originals_of_verl() -> None:
    """BytedTsinghua's own file: instructions around the problem, the gold in `reward_model` alone."""
    (dapo,) = sources_of("rl", ["dapo"])
    wrapped = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 1+1?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    made = dapo.convert(
        Row({"prompt": [{"content": wrapped, "role": "user"}], "reward_model": {"ground_truth": "2"}}, "row 1")
    )
    assert (made.problem, made.answer) == ("What is 1+1?", "2")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[f(a=1)]", [("f", {"a": 1})]),
        ("[f(a=-1.5, from='x', b={'k': (1, None)})]", [("f", {"a": -1.5, "from": "x", "b": {"k": [1, None]}})]),
        (
            '[f(a={"k": true, "l": null},), f (g)(b="]), f(c=1)")]',
            [("f", {"a": {"k": True, "l": None}}), ("f (g)", {"b": "]), f(c=1)"})],
        ),
        ('[f(a="say \\"hi\\"", b=[1, [2]])]', [("f", {"a": 'say "hi"', "b": [1, [2]]})]),
        ("[f()]", [("f", {})]),
    ],
)
def test_calls_in_brackets(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert is_calls(text)
    assert parse_calls(text, ["f", "f (g)"]) == calls


@pytest.mark.parametrize(
    "text",
    [
        "[g(a=1)]",
        "[f(1)]",
        "[f(a=open('x'))]",
        "[f(a==1)]",
        "[f(a=1 2)]",
        "[f(a=1) f(a=2)]",
        "[f(a=NaN)]",
        "[f(a={1})]",
    ],
)
def test_what_is_no_call_is_left_out(text: str) -> None:
    with pytest.raises(LeftOutError):
        parse_calls(text, ["f"])


def test_text_in_brackets_is_no_call() -> None:
    assert not is_calls("[see (1)] and [2]")
    assert not is_calls("Sure.")
