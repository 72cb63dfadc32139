"""A few rows of each source that `rstar2 data build` knows, made up, in the shape of its published files."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

MARKETS = {
    "name": "Market Trends API",
    "description": "Trends of a market.",
    "parameters": {
        "type": "dict",
        "properties": {"kind": {"type": "string", "description": "Which."}, "$top": {"type": "int"}},
        "required": ["kind"],
    },
    "required": None,
}
FEED = {"name": "User Feed (Video) V2", "description": "A feed.", "parameters": {"type": "dict", "properties": {}}}
TOOLACE_SYSTEM = (
    "You are an expert in composing functions. You are given a question and a set of possible functions. \n"
    "Here is a list of functions in JSON format that you can invoke:\n{}. \nShould you decide to return the function "
    "call(s). \nPut it in the format of [func1(params_name=params_value, params_name2=params_value2...), func2(params)]"
    "\n\nNO other text MUST be included. \n"
)


def toolace_row(*turns: tuple[str, str], functions: object = (MARKETS, FEED), before: str = "") -> dict[str, Any]:
    listed = functions if isinstance(functions, str) else json.dumps(functions)
    return {
        "system": before + TOOLACE_SYSTEM.replace("{}", listed),
        "conversations": [{"from": speaker, "value": text} for speaker, text in turns],
    }


TOOLACE = [
    toolace_row(
        ("user", "Which stocks gained most?"),
        ("assistant", '[Market Trends API(kind="gainers, all", $top=2), User Feed (Video) V2()]'),
        ("tool", '[{"name": "Market Trends API", "results": {"first": "A"}}, {"name": "Feed", "results": []}]'),
        ("assistant", "A gained most."),
        before="Today is 2024-05-01. ",
    ),
    toolace_row(("user", "Hi."), ("assistant", "[Unknown API(a=1)]")),
    toolace_row(("user", "Hi."), ("assistant", '[Market Trends API("gainers")]')),
    toolace_row(("user", "Hi."), ("assistant", "Hello."), functions="[no list"),
]

LOOK_UP = {"name": "look_up", "description": "Look up an order.", "parameters": {"type": "object", "properties": {}}}


def apigen_row(*turns: tuple[str, str]) -> dict[str, Any]:
    return {
        "conversations": [{"from": speaker, "value": text} for speaker, text in turns],
        "tools": json.dumps([LOOK_UP]),
        "system": "# Retail policy\nOne call at a time.",
    }


APIGEN_MT = [
    apigen_row(
        ("human", "Where is my order?"),
        ("function_call", '{"name": "look_up", "arguments": "{\\"id\\": \\"#W1\\"}"}'),
        ("observation", "on its way"),
        ("gpt", "It is on its way."),
        ("human", "Thanks"),
    ),
    apigen_row(("human", "Cancel it."), ("function_call", '{"name": "cancel", "arguments": {}}')),
]

HEADLINES = {"name": "get_news", "description": "News.", "parameters": {"type": "object", "properties": {}}}
GLAIVE = [
    {
        "system": "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
        + json.dumps(HEADLINES, indent=4)
        + "\n\n"
        + json.dumps(LOOK_UP, indent=4)
        + "\n",
        "chat": 'USER: What\'s new in the US?\n\n\nASSISTANT: <functioncall> {"name": "get_news", "arguments": '
        '\'{"country": "it\'s the US"}\'} <|endoftext|>\n\n\nFUNCTION RESPONSE: {"headlines": ["B"]}\n\n\n'
        "ASSISTANT: The headline is B. <|endoftext|>\n\n\n\n",
    },
    {
        "system": "SYSTEM: You are a helpful assistant, with no access to external functions.\n",
        "chat": "USER: Hi.\n\n\nASSISTANT: Hello. <|endoftext|>\n\n\n",
    },
    {
        "system": "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
        + json.dumps(HEADLINES),
        "chat": 'USER: News?\n\n\nASSISTANT: <functioncall> {"name": "get_news", "arguments": \'{broken\'}\n\n\n',
    },
]
GLAIVE.append(GLAIVE[1])


def magicoder_row(lang: str, solution: str) -> dict[str, Any]:
    return {
        "lang": lang,
        "raw_index": 1,
        "index": 2,
        "seed": "x = 1",
        "openai_fingerprint": "fp",
        "problem": f"Write a {lang} program of {len(solution)} signs.",
        "solution": solution,
    }


MAGICODER = [
    magicoder_row("python", "```python\nprint(sum(range(10)))\n```"),
    magicoder_row("rust", "```rust\nfn main() {}\n```"),
    magicoder_row("python", "There is no program."),
    magicoder_row("python", "```python\nprint(\n```"),
]
TULU = [
    {
        "id": "personahub_1",
        "prompt": "Name two rivers in capitals.",
        "messages": [
            {"content": "Name two rivers in capitals.", "role": "user"},
            {"content": "RHINE, NILE", "role": "assistant"},
        ],
        "constraints": ["change_case:english_capital"],
    },
    {
        "id": "personahub_2",
        "prompt": "Say nothing.",
        "messages": [{"content": "Hush.", "role": "user"}],
        "constraints": [],
    },
]


def nemotron_row(output: str, reasoning: str) -> dict[str, Any]:
    return {
        "input": [{"role": "user", "content": "What is a fjord?"}],
        "output": output,
        "category": "chat",
        "license": "cc-by-4.0",
        "reasoning": reasoning,
        "generator": "made up",
        "used_in_training": "yes",
        "version": "v1",
        "system_prompt": f"detailed thinking {reasoning}",
    }


NEMOTRON_CHAT = [
    nemotron_row("<think>\n</think>\n\nA narrow inlet of the sea.", "off"),
    nemotron_row("<think>\nThe user asks.\n</think>\n\nAn inlet.", "on"),
]

SHARED_WITH_A_TEST = "Find the number of ways to place nine stones in a row of three."


def dapo_row(problem: str, answer: str) -> dict[str, Any]:
    return {
        "prompt": problem,
        "solution": answer,
        "data_source": "math_dapo",
        "source_prompt": [{"content": f"Solve … {problem}", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"index of {problem}"},
    }


DAPO = [
    dapo_row("What is 3+4?", "7"),
    dapo_row("What is 3-4?", "-1"),
    dapo_row("What is 3-3?", "0"),
    dapo_row("三加四等于多少？请计算。", "7"),
    dapo_row(SHARED_WITH_A_TEST, "84"),
]


def open_math_row(problem: str, answer: str, problem_type: str = "has_answer_extracted") -> dict[str, Any]:
    return {
        "expected_answer": answer,
        "problem_type": problem_type,
        "problem_source": "aops_c4_high_school_math",
        "generation_model": "DeepSeek-R1",
        "pass_rate_72b_tir": "0.96875",
        "problem": problem,
        "generated_solution": "<think> long </think>",
        "inference_mode": "cot",
        "used_in_kaggle": True,
    }


OPEN_MATH_REASONING = [
    open_math_row("What is 5 times 5?", "25"),
    open_math_row("What is 5 times 5?", "25"),
    open_math_row("What is half of 5?", r"\frac{5}{2}"),
    open_math_row("Prove that 1 is 1.", "1", "converted_proof"),
    open_math_row("What is $3 + 4$?", "7"),
]
PROJECT_EULER = [
    {
        "id": 1,
        "title": "Multiples of 3 or 5",
        "problem": "Find the sum of all multiples below a thousand.",
        "difficulty": "5",
        "solution": "233168",
        "story_problem": "Once upon a time.",
    },
    {"id": 2, "title": "Open", "problem": "Find it.", "difficulty": "90", "solution": None, "story_problem": ""},
]


def write_sources(folder: Path) -> Path:
    """As the hub's command line leaves the repositories, each in a folder."""
    for name, rows in {
        "toolace/data.json": TOOLACE,
        "APIGen-MT-5k/apigen-mt_5k.json": APIGEN_MT,
        "glaive/glaive-function-calling-v2.json": GLAIVE,
        "nemotron_chat/SFT/chat/chat.jsonl": NEMOTRON_CHAT,
        "magicoder/data-oss_instruct-decontaminated.jsonl": MAGICODER,
        "tulu/data/train-00000-of-00001.parquet": TULU,
        "dapo/all/train-00000-of-00001.parquet": DAPO,
        "open_math_reasoning/data/cot-00000-of-00002.parquet": OPEN_MATH_REASONING[:1],
        "open_math_reasoning/data/cot-00001-of-00002.parquet": OPEN_MATH_REASONING[1:],
        "open_math_reasoning/data/tir-00000-of-00001.parquet": [open_math_row("Never read", "1")],
        "project_euler/euler/test-00000-of-00001.parquet": PROJECT_EULER,
    }.items():
        write_rows(folder / name, rows)
    return folder


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        path.write_text(json.dumps(rows), encoding="utf-8")
