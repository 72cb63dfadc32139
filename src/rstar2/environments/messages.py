"""Makes the messages that an episode begins with from a row of data of any shape."""

from collections.abc import Mapping, Sequence
from typing import Any

from rstar2.engine.protocol import Message
from rstar2.errors import UserError
from rstar2.records import Problem

PROMPT_COLUMNS = ("prompt", "question", "problem")
"""The columns that may hold the opening, in order of preference."""
ASKED = "asked"
"""The id of a problem from a person or a request: it is in no data set, so errors do not name it."""
_ROLES = ("system", "user", "assistant")


def row_of(problem: Problem) -> Mapping[str, Any]:
    """The row of a problem; a problem from a command line or a generator has a row of question and answer."""
    return problem.row or {"problem": problem.problem, "answer": problem.answer}


def mistake_in(problem: Problem, sentence: str) -> UserError:
    """An error about the row of a problem that names the problem."""
    return UserError(sentence if problem.id == ASKED else f"problem {problem.id}: {sentence}")


def opening_messages(problem: Problem, prompt: Any, system_text: str = "") -> tuple[Message, ...]:
    """`as_messages` with errors that name the problem."""
    try:
        return as_messages(prompt, system_text)
    except UserError as error:
        raise mistake_in(problem, str(error)) from error


def without_prompt(problem: Problem, otherwise: str = "") -> UserError:
    """The error for an episode that would begin with an empty message. `otherwise` is another way to fix it."""
    needed, has = ", ".join(PROMPT_COLUMNS), ", ".join(row_of(problem)) or "none"
    return mistake_in(
        problem, f"the first message is empty: the row needs one of the columns {needed}{otherwise}; it has {has}"
    )


def prompt_of(row: Mapping[str, Any]) -> Any:
    """The text or the messages of the row; an empty text if it has none."""
    return next((row[column] for column in PROMPT_COLUMNS if row.get(column)), "")


def as_messages(prompt: Any, system_text: str = "") -> tuple[Message, ...]:
    """Convert a text, or messages in the form of chat templates, into messages that end with the user's. `system_text`
    is used unless they begin with a system message. UserError says what is wrong with them."""
    if isinstance(prompt, str):
        messages: list[Message] = [{"role": "user", "content": prompt}]
    elif isinstance(prompt, Sequence) and prompt:
        messages = [_message(message) for message in prompt]
    else:
        raise UserError(f"a prompt must be a text or a list of messages, not {_shown(prompt)}")
    if messages[-1]["role"] != "user":
        raise UserError(f"the last message of a prompt must be the user's, not one of the {messages[-1]['role']}")
    if system_text and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_text})
    return tuple(messages)


def _message(message: Any) -> Message:
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise UserError(f"a message must be {{role, content}}, not {_shown(message)}")
    if message["role"] not in _ROLES:
        raise UserError(f"the role of a message must be {', '.join(_ROLES)}, not {_shown(message['role'])}")
    return {"role": message["role"], "content": _text(message["content"])}


def _text(content: Any) -> str:
    """The text of a content: text or blocks of text."""
    if isinstance(content, str):
        return content
    is_list = isinstance(content, Sequence)
    if not is_list or not all(isinstance(block, Mapping) and isinstance(block.get("text"), str) for block in content):
        raise UserError(f"the content of a message must be a text, not {_shown(content)}; images cannot be used")
    return "".join(block["text"] for block in content)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:60]!r}"
