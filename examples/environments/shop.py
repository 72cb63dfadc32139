"""An agent of pydantic-ai, as its documentation writes one, trained as it is: nothing of it knows rstar2.

    cd examples/environments
    pip install "pydantic-ai-slim[openai]"
    python shop.py > shop_warmup.jsonl
    rstar2 train shop.toml

A customer wants something, and the agent has a tool that sells. The library leads the conversation: it asks the model
by an OpenAI base URL, runs the tool, sends the result back, and returns the last answer. The warm-up shows how calls
and answers are written, and mostly sells the wrong thing: which one is right is learnt from the reward.
"""

import functools
import json
import random

from habits import habitual

ITEMS = ("apples", "bread", "cheese", "dates")
CUSTOMERS = ("Ada", "Ben", "Cy", "Dot", "Eve", "Fay", "Gus", "Hal", "Ida", "Jan", "Kay", "Lee", "Mia", "Ned", "Pia")


def rows():
    """The tasks, as rows whose columns are ours to choose."""
    for customer in CUSTOMERS:
        for item in ITEMS:
            yield {"id": f"{customer}-{item}", "prompt": f"{customer} wants {item}.", "item": item}


@functools.cache
def connections():
    """All episodes of a process share them: each client of its own would read the certificates of the web again."""
    from httpx2 import AsyncClient

    return AsyncClient(timeout=None)


async def agent(row, base_url, api_key, model):
    """One episode: the library's own agent, with a base URL and a key. What it returns is `trace.answer`."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=base_url, api_key=api_key, http_client=connections())
    shop = Agent(OpenAIChatModel(model, provider=provider))
    sold = []

    @shop.tool_plain
    def sell(item: str) -> str:
        """Sell an item to the customer."""
        sold.append(item)
        return "Sold."

    await shop.run(row["prompt"])
    return ", ".join(sold)


def reward(row, trace):
    """True or False: the customer got what was wanted, and nothing else, or not."""
    return trace.answer == row["item"]


def warm_up(row, rng):
    """A conversation as it is written down. What is sold is right by chance only."""
    item = habitual(rng, ITEMS, right=row["item"])
    call = {"type": "function", "function": {"name": "sell", "arguments": {"item": item}}}
    return {
        "messages": [
            {"role": "user", "content": row["prompt"]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "Sold."},
            {"role": "assistant", "content": "Done."},
        ]
    }


if __name__ == "__main__":
    rng = random.Random(0)
    tasks = list(rows())
    for _ in range(3000):
        print(json.dumps(warm_up(rng.choice(tasks), rng)))
