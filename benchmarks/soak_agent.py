"""The agent of `serve_soak.py --agent`: a policy that is written down, whose answers depend on what its programs print.

`rstar2 serve --agent --engine soak_agent:open_policy` serves it. The question names a task: a number, and what kind of
program is run for it. The answer is made of the program's own output, so that an answer with another's output shows.
"""

import json
import re

from rstar2.agent import ChatFormat, PythonTool
from rstar2.config import Recipe
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.rollout.engines import OpenedModel

HANGS = "hangs"
PROGRAMS = {
    "prints": ("print({number} * 7919)",),
    "fails": ("print({number}); 1 / 0", "print({number} * 7919)"),
    "sleeps": ("import time; time.sleep(0.05); print({number} * 7919)",),
    "floods": ("print('x' * 20_000); print({number} * 7919)",),
    HANGS: ("while True: pass",),
}
"""The programs of each kind of task, one a turn. All but the last end with the same number."""
KINDS = [kind for kind in PROGRAMS if kind != HANGS]
QUESTION = re.compile(r"task (\d+) (\w+)")
RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)


def question(number: int, kind: str) -> str:
    return f"Do task {number} {kind}."


def answer(number: int) -> str:
    return rf"\boxed{{{number * 7919}}}"


def reply(prompt: ScriptedPrompt) -> str:
    asked = list(QUESTION.finditer(prompt.text))[-1]
    programs = PROGRAMS[asked[2]]
    said = RESPONSE.findall(prompt.text[asked.end() :])
    if len(said) < len(programs):
        code = programs[len(said)].format(number=asked[1])
        call = {"name": PythonTool.schema.name, "arguments": {"code": code, "input": ""}}
        return f"I run {asked[1]}.</reason>\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return rf"It is done.</reason><answer>\boxed{{{said[-1].split()[-1]}}}</answer>"


async def open_policy(_recipe: Recipe) -> OpenedModel:
    chat = ChatFormat.of(PlainTextTokenizer())
    return OpenedModel(ScriptedEngine(reply, chat.tokenizer, chat.end_of_turn_id), chat, "soak")
