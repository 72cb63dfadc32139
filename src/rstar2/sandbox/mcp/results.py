"""Converts an execution into the answer to a tool call: text for the model, structured content for programs. Pure."""

from base64 import b64encode
from collections.abc import Iterable

from mcp import MCPError
from mcp.types import INTERNAL_ERROR, CallToolResult, ContentBlock, ImageContent, TextContent
from pydantic import BaseModel, Field

from rstar2.sandbox.execution import Display, Execution, FileInfo

IMAGE_TYPES = ("image/png", "image/jpeg")


class ProgramResult(BaseModel):
    """How a program or a cell ended, and what it wrote."""

    status: str = Field(description="ok, error, timeout, memory, output_limit or signal")
    stdout: str
    stderr: str
    value: str | None = Field(description="The last expression, as a notebook shows it.")
    message: str = Field(description="What happened, where the status alone does not say.")
    wall_s: float
    session: str | None = Field(None, description="The notebook that the cell belongs to.")
    num_cells: int | None = Field(None, description="Cells whose effects are in the notebook's state.")


class FileContents(BaseModel):
    """A file of a notebook. One of `text` and `base64` is there."""

    path: str
    num_bytes: int
    text: str | None = Field(None, description="If it is UTF-8.")
    base64: str | None = Field(None, description="If it is not.")


class FileEntry(BaseModel):
    path: str
    num_bytes: int


class SessionFiles(BaseModel):
    files: list[FileEntry]


class SessionState(BaseModel):
    """A notebook after a change."""

    session: str
    num_cells: int


def program_result(
    execution: Execution, max_chars: int, session: str | None = None, num_cells: int | None = None
) -> CallToolResult:
    """Convert an execution; MCPError for a fault of the sandbox."""
    if execution.status.is_sandbox_fault:
        raise fault(execution.message or execution.status.value)
    traceback = execution.error.traceback if execution.error is not None else ""
    shown = ProgramResult(
        status=execution.status.value,
        stdout=shortened(execution.stdout, max_chars),
        stderr=shortened(execution.stderr + traceback, max_chars),
        value=None if execution.value is None else shortened(execution.value, max_chars),
        message=_message(execution),
        wall_s=round(execution.wall_s, 4),
        session=session,
        num_cells=num_cells,
    )
    content: list[ContentBlock] = [TextContent(text=_text(shown)), *map(_display, _other_displays(execution))]
    return CallToolResult(content=content, structured_content=shown.model_dump(), is_error=not execution.ok)


def _other_displays(execution: Execution) -> list[Display]:
    """Images, and what `display` showed; the value's text is shown already."""
    return [shown for shown in execution.displays if not shown.is_result or _image_type(shown) is not None]


def _image_type(shown: Display) -> str | None:
    return next((kind for kind in IMAGE_TYPES if kind in shown.data), None)


def _display(shown: Display) -> ContentBlock:
    kind = _image_type(shown)
    if kind is not None:
        return ImageContent(data=shown.data[kind], mime_type=kind)
    return TextContent(text=shown.data["text/plain"])


def file_result(path: str, data: bytes, max_chars: int) -> CallToolResult:
    """A file's result: text as text, an image as an image, other data as base64 in the structured content."""
    kind = _magic(data)
    found = FileContents(path=path, num_bytes=len(data))
    content: list[ContentBlock] = [TextContent(text=f"[{path}: {len(data)} bytes]")]
    try:
        found.text = data.decode()
        content = [TextContent(text=shortened(found.text, max_chars))]
    except UnicodeDecodeError:
        found.base64 = b64encode(data).decode()
        if kind is not None:
            content.append(ImageContent(data=found.base64, mime_type=kind))
    return CallToolResult(content=content, structured_content=found.model_dump())


def file_list(files: Iterable[FileInfo]) -> CallToolResult:
    found = SessionFiles(files=[FileEntry(path=file.path, num_bytes=file.num_bytes) for file in files])
    text = "\n".join(f"{file.path}  {file.num_bytes} bytes" for file in found.files) or "[no files]"
    return CallToolResult(content=[TextContent(text=text)], structured_content=found.model_dump())


def _magic(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    return "image/jpeg" if data.startswith(b"\xff\xd8\xff") else None


def session_result(state: SessionState, text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], structured_content=state.model_dump())


def fault(reason: str) -> MCPError:
    return MCPError(INTERNAL_ERROR, f"The sandbox failed, not the program; try again. ({reason})", {"retry": True})


def shortened(text: str, max_chars: int) -> str:
    """The head and the tail of a text, with the number of omitted characters in between."""
    if len(text) <= max_chars:
        return text
    head, tail = max_chars - max_chars // 2, max_chars // 2
    return f"{text[:head]}\n[... {len(text) - max_chars} characters left out ...]\n{text[len(text) - tail :]}"


def _message(execution: Execution) -> str:
    if execution.ok or execution.message:
        return execution.message
    return f"signal {execution.signal}" if execution.signal is not None else f"exit code {execution.exit_code}"


def _text(shown: ProgramResult) -> str:
    parts = [shown.stdout, shown.stderr, shown.value or ""]
    if shown.status != "ok":
        parts.append(f"[{shown.status}: {shown.message}]")
    if shown.session is not None:
        parts.append(f"[session {shown.session}, {shown.num_cells} cells]")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"
