r"""How a conversation is written: the system text, the tools, and the template's separators between turns.

The template is rendered once, with marks in place of texts, to learn what it puts between an assistant turn and the
user turn after it, and between that and the next assistant turn. From then on a turn is appended by writing exactly
that text, and no earlier turn is rendered a second time. Text from outside cannot forge a turn: a control token in it
is broken up by a space (`<|im_end|>` becomes `< |im_end|>`).

The tools are described in the system text as Qwen does. A Qwen template renders the same bytes as if it had been given
them itself, and templates without tools, or with other formats for them, work as well.

User texts and the system text are written without white space around them: some templates trim them, others do not.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from rstar2.agent.tool import ToolSchema
from rstar2.engine.protocol import Message, Tokenizer
from rstar2.errors import UserError
from rstar2.records import Turn

ASSISTANT_OPENING = "<reason>"
"""The text that opens every assistant turn. We write it; the model does not sample it."""
REASON_END = "</reason>"

SYSTEM_TEXT = r"""A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The Assistant first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning process and the answer are enclosed within <reason> </reason> and <answer> </answer> tags, respectively, and the final result stands in \boxed{} inside the answer, i.e., <reason> reasoning process here </reason><answer> answer here, with \boxed{result} </answer>."""  # noqa: E501

GENERAL_SYSTEM_TEXT = """A conversation between User and Assistant. The Assistant first thinks about the reasoning process in the mind, enclosed within <reason> </reason> tags, and then acts: it calls a tool, or it answers."""  # noqa: E501
"""The system text of tasks other than mathematics that bring none of their own."""

TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)

QWEN_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template for models that come without one."""

_SYSTEM_MARK, _ASSISTANT_MARK, _USER_MARK = "rstar2-system-mark", "rstar2-assistant-mark", "rstar2-user-mark"


class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows its model's chat template."""

    @property
    def control_tokens(self) -> Sequence[str]:
        """The tokens that mark structure, never content."""
        ...

    @property
    def stop_token_ids(self) -> Sequence[int]:
        """The tokens with which the model itself ends, besides the end of a turn."""
        ...

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation, and the opening of the assistant's next turn."""
        ...


def with_tools(
    system_text: str, functions: Sequence[Mapping[str, Any]], harmless: Callable[[str], str] = lambda text: text
) -> str:
    """The text of a system turn, then the tools as chat templates and servers describe them. A tool may come from a
    foreign server, so `harmless` cleans its description."""
    if not functions:
        return system_text
    lines = "".join("\n" + harmless(json.dumps(function, ensure_ascii=False)) for function in functions)
    return f"{system_text}\n\n{TOOLS_HEAD}{lines}{TOOLS_TAIL}"


def opened(rendered: str) -> str:
    """A rendering up to where the assistant continues. The templates of models that were trained here open its turn
    themselves."""
    return rendered if rendered.endswith(ASSISTANT_OPENING) else rendered + ASSISTANT_OPENING


def behind_opening(said: str) -> str:
    """The assistant's text after the opening of its turn, which servers do not repeat. A text without reasoning gets an
    empty one, which keeps the format and teaches no reasoning."""
    if said.lstrip().startswith(ASSISTANT_OPENING):
        return said.lstrip().removeprefix(ASSISTANT_OPENING)
    return said if REASON_END in said else f"{REASON_END}\n{said}"


def tool_responses(texts: Sequence[str]) -> str:
    """The user turn that answers one or several calls, in their order."""
    return "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The format in which one model writes a conversation."""

    tokenizer: ChatTokenizer
    end_of_turn: str
    end_of_turn_id: int
    stop_token_ids: tuple[int, ...]
    before_end: str
    """The template's text between an assistant's text and its end of turn, mostly empty."""
    before_user: str
    """The text from an assistant's end of turn to the user's text."""
    before_assistant: str
    """The text from the end of the user's message to where the assistant continues."""
    system_text: str
    """The system text before the tools and the question, for conversations that bring none of their own. If empty,
    there is no system turn at all."""
    _control: re.Pattern[str] = field(repr=False)

    @classmethod
    def of(cls, tokenizer: ChatTokenizer, system_text: str = SYSTEM_TEXT) -> Self:
        """Learns the format from the tokenizer's template. UserError if it cannot be used for conversations of many
        turns."""
        user_content = tool_responses([_USER_MARK])
        rendered = tokenizer.render(
            [
                {"role": "system", "content": _SYSTEM_MARK},
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": _ASSISTANT_MARK},
                {"role": "user", "content": user_content},
            ]
        )
        before, has_assistant, rest = rendered.partition(_ASSISTANT_MARK)
        between, has_user, after_user = rest.partition(user_content)
        if _SYSTEM_MARK not in before or not has_assistant or not has_user:
            raise UserError("the model's chat template leaves out turns of a conversation: use another model")
        control = _any_of(tokenizer.control_tokens)
        end = control.search(between)
        if end is None or between[: end.start()].strip():
            raise UserError(
                "the model's chat template does not close the assistant's turn with a control token of its tokenizer, "
                f"but with {between!r}: use a model whose template does"
            )
        end_ids = tokenizer.encode(end[0])
        if len(end_ids) != 1:
            raise UserError(f"the model's tokenizer splits its end of turn {end[0]!r} into {len(end_ids)} tokens")
        return cls(
            tokenizer=tokenizer,
            end_of_turn=end[0],
            end_of_turn_id=end_ids[0],
            stop_token_ids=tuple(dict.fromkeys((end_ids[0], *tokenizer.stop_token_ids))),
            before_end=between[: end.start()],
            before_user=between[end.end() :],
            before_assistant=opened(after_user),
            system_text=system_text.strip(),
            _control=control,
        )

    def prompt_text(self, question: str, tools: Sequence[ToolSchema]) -> str:
        return self.conversation_text([{"role": "user", "content": question}], tools)

    def conversation_text(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> str:
        """All text before the assistant's next token. Earlier turns are written as a rollout would have them. Messages
        come from outside: none of them can forge a turn."""
        system_text = self.system_text
        if messages and messages[0]["role"] == "system":
            # A recipe without a system turn is for a model that never saw one.
            system_text = system_text and self.harmless(messages[0]["content"])
            messages = messages[1:]
        turns = _by_speaker(messages)
        if not turns or turns[0][0]:
            turns.insert(0, (False, ""))
        text = self.opening_text(system_text, [tool.as_function() for tool in tools], turns[0][1])
        return text + "".join(self._turn_text(*turn, after_end_of_turn=True) for turn in turns[1:])

    def following_text(self, messages: Sequence[Message], *, after_end_of_turn: bool) -> str:
        """All text between an assistant's turn and its next token. The first message is not the assistant's."""
        first, *others = _by_speaker(messages)
        assert not first[0], "an assistant's turn is followed by someone else's"
        text = self._turn_text(*first, after_end_of_turn=after_end_of_turn)
        return text + "".join(self._turn_text(*turn, after_end_of_turn=True) for turn in others)

    def _turn_text(self, is_own: bool, content: str, *, after_end_of_turn: bool) -> str:
        if is_own:
            return self.harmless(behind_opening(content)) + self.before_end + self.end_of_turn
        return self.user_turn_text(content.strip(), after_end_of_turn=after_end_of_turn)

    def opening_text(self, system_text: str, functions: Sequence[Mapping[str, Any]], question: str) -> str:
        """The text before the assistant's first token. Without a system text there is no system turn, and no tools."""
        messages = [{"role": "user", "content": self.harmless(question.strip())}]
        if system_text.strip():
            messages.insert(0, {"role": "system", "content": with_tools(system_text.strip(), functions, self.harmless)})
        return opened(self.tokenizer.render(messages))

    def user_turn_text(self, content: str, *, after_end_of_turn: bool) -> str:
        """The text from an assistant turn to where the next one continues. A turn that was cut off is closed first."""
        closing = "" if after_end_of_turn else self.before_end + self.end_of_turn
        return closing + self.before_user + self.harmless(content) + self.before_assistant

    def user_turn_ids(self, text: str, *, after_end_of_turn: bool) -> list[int]:
        """The ids of a `user_turn_text`, tokenized alone. If it follows an end of turn, it is tokenized behind one:
        some tokenizers treat the start of a text, or the text after a control token, differently."""
        if not after_end_of_turn:
            return self.tokenizer.encode(text)
        first, *ids = self.tokenizer.encode(self.end_of_turn + text)
        assert first == self.end_of_turn_id, "a control token merged with the text behind it"
        return ids

    def end_of(self, turns: Sequence[Turn]) -> str:
        """The control token that ended the last turn; empty if it was cut off."""
        last = turns[-1].token_ids[-1:] if turns else ()
        return self.tokenizer.decode(last) if last and last[0] in self.stop_token_ids else ""

    def harmless(self, text: str) -> str:
        """Text from outside that can be tokenized and forges no turn."""
        readable = text.encode("utf-8", "replace").decode()
        return self._control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", readable)


def _by_speaker(messages: Sequence[Message]) -> list[tuple[bool, str]]:
    """The text of each run of messages by the assistant (True) or by anyone else."""
    runs: list[tuple[bool, list[str]]] = []
    for message in messages:
        is_own = message["role"] == "assistant"
        if not runs or runs[-1][0] != is_own:
            runs.append((is_own, []))
        runs[-1][1].append(message["content"])
    return [(is_own, "\n".join(texts)) for is_own, texts in runs]


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    """A pattern that matches any of the tokens, the longest first; nothing if there are none."""
    longest_first: list[Any] = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
