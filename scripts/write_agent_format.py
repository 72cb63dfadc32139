"""Write how a shipped agent holds conversations, from the recipe that it was trained with:

    python scripts/write_agent_format.py smollm2-135m-agent smollm2-1gpu

Its chat template and its agent_format.json are what the export of such a run would write. The base must be on this
machine (`rstar2 models get`).
"""

import sys

from rstar2.agent import load_chat, write_format
from rstar2.config import load_recipe
from rstar2.models import AGENTS, resolve


def main(name: str, recipe: str) -> None:
    entry, agent = AGENTS[name], load_recipe(recipe).agent
    chat = load_chat(resolve(entry.base), agent.template, agent.system_text, agent.tool_tags)
    write_format(entry.folder, chat, agent.tool)


if __name__ == "__main__":
    main(*sys.argv[1:])
