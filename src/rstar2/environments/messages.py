"""The messages that an episode begins with, from a row of data of any shape."""

from collections.abc import Mapping, Sequence
from typing import Any

from rstar2.engine.protocol import Message
from rstar2.errors import UserError
from rstar2.records import Problem

PROMPT_COLUMNS = ("prompt", "question", "problem")
"""The columns that hold the opening, in the order in which they are looked for."""
ASKED = "asked"
"""The id of a problem that a person or a request asks: no data set holds it, so errors do not name it."""
_ROLES = ("system", "user", "assistant")


def row_of(problem: Problem) -> Mapping[str, Any]:
    """The row of a problem; one that was given as a question, on a command line or by a generator, is a row of two."""
    return problem.row or {"problem": problem.problem, "answer": problem.answer}


def mistake_in(problem: Problem, sentence: str) -> UserError:
    """What is wrong with the row of a problem, as an error that names the problem."""
    return UserError(sentence if problem.id == ASKED else f"problem {problem.id}: {sentence}")


def opening_messages(problem: Problem, prompt: Any, system_text: str = "") -> tuple[Message, ...]:
    """As `as_messages`; an error names the problem."""
    try:
        return as_messages(prompt, system_text)
    except UserError as error:
        raise mistake_in(problem, str(error)) from error


def without_prompt(problem: Problem, otherwise: str = "") -> UserError:
    """The error of an episode that would begin with an empty message. `otherwise` is another way to mend it."""
    needed, has = ", ".join(PROMPT_COLUMNS), ", ".join(row_of(problem)) or "none"
    return mistake_in(
        problem, f"the first message is empty: the row needs one of the columns {needed}{otherwise}; it has {has}"
    )


def prompt_of(row: Mapping[str, Any]) -> Any:
    """The text or the messages of the row; an empty text if it has none."""
    return next((row[column] for column in PROMPT_COLUMNS if row.get(column)), "")


def as_messages(prompt: Any, system_text: str = "") -> tuple[Message, ...]:
    """A text, or messages in the form of chat templates, as messages of which the last is the user's. `system_text` is
    used unless they begin with a system message of their own. UserError says what is wrong with them."""
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
    """A text, or blocks of text."""
    if isinstance(content, str):
        return content
    is_list = isinstance(content, Sequence)
    if not is_list or not all(isinstance(block, Mapping) and isinstance(block.get("text"), str) for block in content):
        raise UserError(f"the content of a message must be a text, not {_shown(content)}; images cannot be used")
    return "".join(block["text"] for block in content)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:60]!r}"
