"""Write how a shipped agent holds conversations, from the recipe that it was trained with:

    python scripts/write_agent_format.py smollm2-135m-agent smollm2-1gpu

Its chat template and its agent_format.json are what the export of such a run would write. The base must be on this
machine (`rstar2 models get`).
"""

import sys

from rstar2.agent import chat_of, write_format
from rstar2.config import load_recipe
from rstar2.models import AGENTS, resolve


def main(name: str, recipe: str) -> None:
    entry, made = AGENTS[name], load_recipe(recipe)
    write_format(entry.folder, chat_of(made, resolve(entry.base)), made.environment)


if __name__ == "__main__":
    main(*sys.argv[1:])
