"""The golden file of Arena-Hard: `arena_hard.py CHECKOUT COMMIT`, where CHECKOUT is lmarena/arena-hard-auto's tree.

Judges' replies with every label, repeated, contradictory, missing and malformed, go through the checkout's `get_score`;
pairs of them, as the two games of a question, through its `load_judgments`.
"""

import itertools
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from golden import write_golden

LABELS = ["A>>B", "A>B", "A=B", "B>A", "B>>A"]
REVERSED = ["A<<B", "A<B", "B=A", "B<A", "B<<A"]
BROKEN = ["A>>>B", "AB", "A", ">", "A>=B", "A>C", "C>D", "A > B", "A>B.", "tie", "", "A≻B", "a>b", "b>>a", "a<B"]
OPENINGS = [
    "",
    "My final verdict is ",
    "Both answers are right, but the second is shorter.\n\nMy final verdict is: ",
    "## Evaluation\n\n1. Assistant A solves x[0][1] + y[[2]].\n2. Assistant B does not.\n\n**Verdict:** ",
    "Die zweite Antwort ist besser: ",
]
CLOSINGS = ["", ".", "\n", '"', "\n\nI hope that this helps.", " (slightly better)", "**"]
WRAPPERS = ["[[{}]]", "[{}]", "[[ {} ]]", "[[{}]", "[{}]]", "[[[{}]]]", "({})", "{}", "[[\n{}\n]]", "[[{}]][[{}]]"]


def replies() -> list[str]:
    draw = random.Random(0)
    one = [wrapper.replace("{}", label) for wrapper in WRAPPERS for label in [*LABELS, *REVERSED, *BROKEN]]
    two = [f"First [[{a}]], no: [[{b}]]" for a, b in itertools.product([*LABELS, *REVERSED], repeat=2)]
    mixed = [f"[[{a}]] and then [{b}]" for a, b in itertools.product(LABELS, [*LABELS, "A", "1"])]
    found = [*one, *two, *mixed]
    for _ in range(300):
        labels = draw.choices([*LABELS, *LABELS, *REVERSED, *BROKEN], k=draw.randint(1, 4))
        found.append(" ".join(draw.choice(WRAPPERS[:4]).replace("{}", label) for label in labels))
    return [draw.choice(OPENINGS) + reply + draw.choice(CLOSINGS) for reply in dict.fromkeys(found)]


def main() -> None:
    checkout, commit = Path(sys.argv[1]).resolve(), sys.argv[2]
    sys.path.insert(0, str(checkout))
    import gen_judgment
    import show_result
    import yaml

    config = yaml.safe_load((checkout / "config" / "arena-hard-v0.1.yaml").read_text())
    system = gen_judgment.JUDGE_SETTINGS["arena-hard-v0.1"]["system_prompt"]
    shown = config["prompt_template"].format(QUESTION="Why {so}?", ANSWER_A="Because.", ANSWER_B="It is not.")

    texts = replies()
    scores = [gen_judgment.get_score(text, config["regex_patterns"]) for text in texts]
    known = {*LABELS, *REVERSED}
    usable = [index for index, score in enumerate(scores) if score is None or score in known]
    draw = random.Random(1)
    games = [(draw.choice(usable), draw.choice(usable)) for _ in range(600)]
    content = {
        "messages": [system, shown],
        "replies": [[text, score] for text, score in zip(texts, scores, strict=True)],
        "games": played(show_result.load_judgments, scores, games),
    }
    write_golden("arena_hard", {"repository": "lmarena/arena-hard-auto", "commit": commit}, content)


def played(load_judgments: Any, scores: list[str | None], games: list[tuple[int, int]]) -> list[list[Any]]:
    """For each pair of replies the points of the model by the official script; None: left out of the score."""
    rows = [
        {
            "uid": f"q{number}",
            "category": "arena-hard-v0.1",
            "model": "m",
            "games": [{"score": scores[i]} for i in pair],
        }
        for number, pair in enumerate(games)
    ]
    with tempfile.TemporaryDirectory() as folder:
        judgments = Path(folder) / "data" / "arena-hard-v0.1" / "model_judgment" / "judge"
        judgments.mkdir(parents=True)
        (judgments / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.chdir(folder)
        battles = load_judgments(["judge"], "arena-hard-v0.1")
        os.chdir("/")
    points: dict[str, list[float]] = {}
    for uid, score in zip(battles["uid"], battles["scores"], strict=True):
        points.setdefault(uid, []).append(float(score))
    return [[*pair, points.get(f"q{number}")] for number, pair in enumerate(games)]


if __name__ == "__main__":
    main()
