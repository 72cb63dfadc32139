"""One problem, many turns: how a conversation is written, calls are parsed and run, and when a rollout ends.

Promise: the ids that the engine made are the ids in the trace, nothing is tokenized twice; every call gets a typed
result; budgets hold on every turn; a fault of ours is never shown to the model as its own.
May import: records, sandbox, engine, config.
"""

from rstar2.agent.chat_template import ChatFormat, ChatTokenizer
from rstar2.agent.end_rules import AgentLimits, End
from rstar2.agent.events import AgentEvent, Observer
from rstar2.agent.hf_tokenizer import HfTokenizer
from rstar2.agent.incremental import Transcript
from rstar2.agent.loop import Agent, World
from rstar2.agent.model_folder import AgentFormat, chat_of, load_chat, read_format, write_format
from rstar2.agent.python_tools import JupyterTool, PythonTool
from rstar2.agent.tool import Tool, ToolSchema

__all__ = [
    "Agent",
    "AgentEvent",
    "AgentFormat",
    "AgentLimits",
    "ChatFormat",
    "ChatTokenizer",
    "End",
    "HfTokenizer",
    "JupyterTool",
    "Observer",
    "PythonTool",
    "Tool",
    "ToolSchema",
    "Transcript",
    "World",
    "chat_of",
    "load_chat",
    "read_format",
    "write_format",
]
