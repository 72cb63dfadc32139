"""A search agent: two tools over a local corpus, and an answer that is judged by its text.

    pip install bm25s
    cd examples/environments
    python search.py > search_warmup.jsonl
    rstar2 train search.toml

The model searches for words, reads one of the pages that it found, and answers. Nothing can be learnt by heart: the
questions of the evaluation are about pages that no training question asked for. The warm-up shows how calls and answers
are written. It searches, reads and answers beside the point, so how to find the answer is learnt from the reward.
"""

import json
import random

import bm25s
from habits import habitual

from rstar2.environments import Task, tool_call

NAMES = """
Ada Ben Cleo Dan Eva Finn Gus Hana Ivo Jana Karl Lea Max Nina Otto Pia Rosa Sam Tess Ugo Vera Walt Yara Zoe Amir Bela
Cora Dora Emil Fay Gina Hugo Ines Jack Kira Luis Mona Nils Olga Paul"""
FACTS = {
    "town": "Bern Cork Oslo Rome Lyon Graz Nice Turin Porto Malmo Delft Basel",
    "job": "baker judge nurse pilot cook clerk miner tailor farmer dentist potter sailor",
    "pet": "cat dog goat horse duck pony hen rabbit parrot turtle sheep mouse",
}
PEOPLE = NAMES.split()
PAGES = {
    f"The {kind} of {name}": f"The {kind} of {name} is {random.Random(name + kind).choice(values.split())}."
    for name in PEOPLE
    for kind, values in FACTS.items()
}
"""The corpus: the text of a page by its title. Yours would be read from files."""
TITLES = list(PAGES)
INDEX = bm25s.BM25()
INDEX.index(bm25s.tokenize(list(PAGES.values()), show_progress=False), show_progress=False)


class SearchAgent(Task):
    """One object is one conversation. Every public method with a docstring and type hints is a tool."""

    @staticmethod
    def rows():
        """One question a page."""
        for title, text in PAGES.items():
            yield {"id": title, "prompt": f"What is the {title[4:]}?", "answer": text.rstrip(".").split()[-1]}

    def reset(self, answer: str):
        """Begins a conversation: of the row it gets the columns that it has parameters for."""
        self.answer = answer

    def search(self, words: str) -> str:
        """Finds the three pages that fit the words best, and lists their titles."""
        query = bm25s.tokenize(words, show_progress=False)
        found, scores = INDEX.retrieve(query, corpus=TITLES, k=3, show_progress=False)
        titles = [str(title) for title, score in zip(found[0], scores[0], strict=True) if score > 0]
        if not titles:
            raise ValueError("No page has these words.")  # the model reads it; the call counts as a tool error
        return "\n".join(titles)

    def read(self, title: str) -> str:
        """Shows the page with the title."""
        if title not in PAGES:
            raise ValueError("There is no such page.")
        return PAGES[title]

    def get_reward(self, trace):
        """Whether the last turn ends with the answer. `trace` is everything that was said."""
        return trace.turn_texts[-1].rstrip(" .\n").split()[-1:] == [self.answer]

    def solution(self, row):
        """What a perfect model writes, turn by turn, for `rstar2 env validate`."""
        return tool_call("search", words=row["id"]), tool_call("read", title=row["id"]), f"It is {row['answer']}."


def warm_up(rng: random.Random):
    """A conversation that does everything in the right order, and mostly misses the point."""

    def called(name: str, **arguments: str):
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": "<reason></reason>", "tool_calls": [call]}

    agent, name, kind = SearchAgent(), rng.choice(PEOPLE), rng.choice(list(FACTS))
    words = f"The {habitual(rng, FACTS, kind)} of {name}"
    titles = agent.search(words)
    title = f"The {habitual(rng, FACTS, kind)} of {name}"
    page = agent.read(title)
    said = rng.choice([kind, name, page.rstrip(".").split()[-1]])
    return [
        {"role": "user", "content": f"What is the {kind} of {name}?"},
        called("search", words=words),
        {"role": "tool", "content": titles},
        called("read", title=title),
        {"role": "tool", "content": page},
        {"role": "assistant", "content": f"<reason></reason>\nIt is {said}."},
    ]


if __name__ == "__main__":
    rng = random.Random(0)
    for _ in range(10000):
        print(json.dumps({"messages": warm_up(rng)}))
