"""Converts a server's answer to a call into the text that the model reads. Pure.

Text comes first. Structured content is shown only without text, because servers repeat it as text. Images and other
binary data are named, not shown.
"""

import json
from typing import TYPE_CHECKING, Any

from rstar2.environments.mcp.messages import CUT_KEY
from rstar2.records import ToolResult, ToolStatus

if TYPE_CHECKING:
    from mcp.types import CallToolResult

NOTHING = "[The tool returned nothing.]"


def result_of(answer: "CallToolResult", wall_s: float) -> ToolResult:
    parts = [part for part in map(_part_of, answer.content) if part]
    if not parts and answer.structured_content is not None:
        parts = [json.dumps(answer.structured_content, ensure_ascii=False)]
    text = "\n".join(parts) or NOTHING
    num_cut_bytes = (answer.meta or {}).get(CUT_KEY, 0)
    if num_cut_bytes:
        text += f"\n[Too much output: {num_cut_bytes} bytes more were not read.]"
        return ToolResult(ToolStatus.OUTPUT_TOO_LONG, text, wall_s, num_cut_chars=num_cut_bytes)
    if answer.is_error:
        return ToolResult(ToolStatus.RAISED, text, wall_s)
    return ToolResult(ToolStatus.OK if parts else ToolStatus.NO_OUTPUT, text, wall_s)


def _part_of(block: Any) -> str:
    """A block of the answer: text, an image, a sound, a resource or a link to one."""
    if block.type == "text":
        return str(block.text)
    if block.type == "resource":
        resource = block.resource
        return str(resource.text) if hasattr(resource, "text") else _unseen(resource.mime_type, resource.blob)
    if block.type == "resource_link":
        return f"[A link to {block.uri}]"
    return _unseen(block.mime_type, block.data)


def _unseen(kind: str | None, base64: str) -> str:
    return f"[{kind or 'Data'} of {len(base64.rstrip('=')) * 3 // 4} bytes, which cannot be shown]"
