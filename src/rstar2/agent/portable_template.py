"""The chat template that a trained model comes with, for programs other than this one.

`transformers`, vLLM and other servers ask `chat_template.jinja` how a conversation is written. This template gives them
the text that the model was trained on: the same system text and tools, the same opening of each assistant turn, tool
results and calls as the agent writes them. Only control tokens in what a user says are not broken up.

Given to `ChatFormat`, it makes the same conversations, so a model can be trained further. `system_text` may be given to
it. It replaces the default text of conversations without a system turn.
"""

import json

from rstar2.agent.chat_template import ASSISTANT_OPENING, REASON_END, TOOLS_HEAD, TOOLS_TAIL, ChatFormat
from rstar2.agent.hf_tokenizer import HfTokenizer
from rstar2.agent.parse import CLOSE, OPEN

_SYSTEM_MARK, _USER_MARK = "rstar2-system-mark", "rstar2-user-mark"

_TURNS = r"""
{%- if messages and messages[0].role == "system" -%}
  {%- set words = messages[0].content | trim -%}
  {%- set turns = messages[1:] -%}
{%- else -%}
  {%- set words = (system_text if system_text is defined else trained_system_text) | trim -%}
  {%- set turns = messages -%}
{%- endif -%}
{%- if words -%}
  {{- before_system + words -}}
  {%- if tools -%}
    {{- "\n\n" + tools_head -}}
    {%- for tool in tools -%}{{- "\n" + (tool | tojson) -}}{%- endfor -%}
    {{- tools_tail -}}
  {%- endif -%}
  {{- after_system -}}
{%- else -%}
  {{- before_first_user -}}
{%- endif -%}
{%- for message in turns -%}
  {%- set content = message.content or "" -%}
  {%- if message.role == "assistant" -%}
    {%- set said = content.rstrip() if message.tool_calls else content -%}
    {{- assistant_opening -}}
    {%- if said.lstrip().startswith(reason_start) -%}
      {{- said.lstrip()[reason_start | length:] -}}
    {%- elif reason_end in said -%}
      {{- said -}}
    {%- else -%}
      {{- reason_end + "\n" + said -}}
    {%- endif -%}
    {%- for call in message.tool_calls or [] -%}
      {%- set function = call.function -%}
      {%- set arguments = function.arguments if function.arguments is string else function.arguments | tojson -%}
      {{- "\n" if said or not loop.first -}}
      {{- call_start + '\n{"name": ' + (function.name | tojson) + ', "arguments": ' + arguments + "}\n" + call_end -}}
    {%- endfor -%}
    {{- assistant_end -}}
  {%- else -%}
    {%- if not loop.first -%}
      {{- before_user if turns[loop.index0 - 1].role == "assistant" else "\n" -}}
    {%- endif -%}
    {%- if message.role == "tool" -%}
      {{- "<tool_response>\n" + content + "\n</tool_response>" -}}
    {%- else -%}
      {{- content | trim -}}
    {%- endif -%}
    {%- if loop.last or turns[loop.index0 + 1].role == "assistant" -%}
      {{- user_end -}}
    {%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- assistant_opening -}}
{%- endif -%}
"""


def portable_template(chat: ChatFormat, tokenizer: HfTokenizer) -> str:
    """The portable template, made of the text that `tokenizer`'s own template writes around the turns of a
    conversation."""
    user = {"role": "user", "content": _USER_MARK}
    messages = [{"role": "system", "content": _SYSTEM_MARK}, user]
    before_system, _, rest = tokenizer.render(messages, opens_turn=False).partition(_SYSTEM_MARK)
    after_system, _, user_end = rest.partition(_USER_MARK)
    if not chat.before_assistant.startswith(user_end):
        user_end = ""  # such a template closes a user's turn only where it opens the assistant's
    texts = {
        "trained_system_text": chat.system_text,
        "before_system": before_system,
        "after_system": after_system,
        "before_first_user": tokenizer.render([user]).partition(_USER_MARK)[0],
        "before_user": chat.before_user,
        "user_end": user_end,
        "assistant_opening": chat.before_assistant.removeprefix(user_end),
        "assistant_end": chat.before_end + chat.end_of_turn,
        "reason_start": ASSISTANT_OPENING,
        "reason_end": REASON_END,
        "call_start": OPEN,
        "call_end": CLOSE,
        "tools_head": TOOLS_HEAD,
        "tools_tail": TOOLS_TAIL,
    }
    lines = [f"{{%- set {name} = {json.dumps(text, ensure_ascii=False)} -%}}" for name, text in texts.items()]
    return "\n".join(lines) + _TURNS
