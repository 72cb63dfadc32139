"""Splits a rendered conversation into its messages, without the chat template around them. Pure.

A run records no template, so the known forms are listed here. Text of another form is one message of the user.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

_HEAD = re.compile(
    r"<\|im_start\|>(\w+)\n"
    r"|<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n"
    r"|<start_of_turn>(\w+)\n"
    r"|<\|(system|user|assistant)\|>\n"
)
"""The start of a message in ChatML, Llama 3, Gemma, and Phi or Zephyr."""
_END = re.compile(r"<\|im_end\|>|<\|eot_id\|>|<end_of_turn>|<\|end\|>|</s>")

USER = "user"
_NAMES = {"model": "assistant"}


@dataclass(frozen=True, slots=True)
class SaidMessage:
    role: str
    text: str


def messages_in(text: str) -> list[SaidMessage]:
    """The messages in `text`; the last may be an assistant's that has only begun."""
    heads = list(_HEAD.finditer(text))
    if not heads:
        return [SaidMessage(USER, text)]
    bounds = [*heads, None]
    messages = []
    for head, following in pairwise(bounds):
        assert head is not None
        said = text[head.end() : following.start() if following else len(text)]
        role = next(filter(None, head.groups()))
        messages.append(SaidMessage(_NAMES.get(role, role), _END.split(said, maxsplit=1)[0]))
    return messages


def user_text(text: str) -> str:
    """The user's last message in `text`."""
    said = [message.text for message in messages_in(text) if message.role == USER]
    return said[-1] if said else text


def earlier_messages(prompt_text: str) -> list[SaidMessage]:
    """The messages of the prompt before the user's last one, without the system text."""
    messages = messages_in(prompt_text)
    last = max((place for place, message in enumerate(messages) if message.role == USER), default=0)
    return [message for message in messages[:last] if message.role != "system"]
