"""A rollout on the terminal while it happens: reasoning, code, results and the answer in different styles."""

import json

from rich.syntax import Syntax
from rich.text import Text

from rstar2.agent.events import (
    AgentEvent,
    CallEnded,
    CallStarted,
    Ended,
    SpanReader,
    TextGenerated,
    TextKind,
    TurnRestarted,
    TurnStarted,
    UserReplied,
)
from rstar2.cli.console import Console
from rstar2.cli.output import printable
from rstar2.records import Fault, ToolCall, ToolResult

UNREADABLE = "a call that cannot be read"

_STYLES = {TextKind.REASON: "dim", TextKind.PLAIN: "", TextKind.ANSWER: "bold green"}


class AgentDisplay:
    """An observer. A tool call is not shown while it is written, as escaped JSON, but as code when it is run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reader = SpanReader()
        self._at_line_start = True

    def __call__(self, event: AgentEvent) -> None:
        match event:
            case TurnStarted(opening=opening):
                self._reader = SpanReader()
                self._write(self._reader.feed(opening))
            case TextGenerated(text=text):
                self._write(self._reader.feed(text))
            case TurnRestarted(reason=reason):
                self._reader = SpanReader()
                self._line(f"[the turn starts again: {reason}]", "yellow")
            case CallStarted(call=call):
                self._finish_turn()
                self._show_call(call)
            case CallEnded(call=call, result=result):
                self._show_result(call, result)
            case UserReplied(text=text):
                self._finish_turn()
                self._line(f"── user\n{text}\n──", "magenta")
            case Ended():
                self._finish_turn()

    def _write(self, pieces: list[tuple[TextKind, str]]) -> None:
        for span, text in pieces:
            if span is TextKind.CALL or (self._at_line_start and not text.strip()):
                continue
            self._console.print(Text(printable(text, self._console.file), _STYLES[span]), end="", soft_wrap=True)
            self._at_line_start = text.endswith("\n")

    def _finish_turn(self) -> None:
        self._write(self._reader.finish())
        if not self._at_line_start:
            self._console.print()
            self._at_line_start = True

    def _line(self, text: str, style: str) -> None:
        if not self._at_line_start:
            self._console.print()
        self._console.print(Text(printable(text, self._console.file), style), soft_wrap=True)
        self._at_line_start = True

    def _show_call(self, call: ToolCall) -> None:
        self._line(f"── {call.name or UNREADABLE}", "bold cyan")
        code = call.arguments.get("code")
        if call.name is None:
            self._line(call.raw.strip(), "cyan")
        elif isinstance(code, str):
            self._console.print(Syntax(code.strip("\n"), "python", theme="ansi_dark", background_color="default"))
            if call.arguments.get("input"):
                self._line(f"with the input {call.arguments['input']!r}", "cyan")
        else:
            self._line(json.dumps(call.arguments, ensure_ascii=False), "cyan")

    def _show_result(self, call: ToolCall, result: ToolResult) -> None:
        style = "bold blue" if result.fault is Fault.NONE else "bold red"
        status = result.status.value.replace("_", " ")
        self._line(f"── {call.name or UNREADABLE}: {status}, {result.wall_s:.2f} s", style)
        self._line(result.text, "blue" if result.fault is Fault.NONE else "red")
        self._line("──", style)
