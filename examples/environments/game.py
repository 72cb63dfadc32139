"""A treasure hunt: a game of several turns, in which the world answers every move.

    cd examples/environments
    python game.py > game_warmup.jsonl
    rstar2 train game.toml

The model says a direction and takes a step; the world says where the treasure is now. There are no tools: a turn
without a call goes to `reply`, whose answer is the user's next message, and the reward comes at the end. The warm-up
shows how a game is written down. Its moves are right by chance only, so how to play is learnt from the reward.
"""

import json
import random
from itertools import permutations, product

from habits import habitual

from rstar2.environments import Task

SIZE = 4
"""The field has so many squares from west to east, and from south to north."""
MAX_MOVES = 6
"""Enough from any square to any other. Random moves find one treasure in five."""
MOVES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


class TreasureHunt(Task):
    """One object is one game."""

    @staticmethod
    def rows():
        """Every game there is, as rows whose columns are ours to choose. `prompt` is the user's first message."""
        squares = product(range(SIZE), repeat=2)
        for n, (here, treasure) in enumerate(permutations(squares, 2)):
            yield {"id": f"game-{n}", "prompt": "Find the treasure. ", "here": here, "treasure": treasure}

    def reset(self, here, treasure):
        """Begins a game with a row. It gets the columns that it has parameters for; what it returns is appended to the
        prompt."""
        self.here, self.treasure, self.num_moves = tuple(here), tuple(treasure), 0
        return self._hint()

    def reply(self, said: str):
        """What the world answers. None ends the game, here also after a turn that says no direction."""
        move = MOVES.get(said.split()[-1]) if said.split() else None  # the model may think aloud before its last word
        if move is None:
            return None
        self.num_moves += 1
        self.here = tuple(min(max(at + by, 0), SIZE - 1) for at, by in zip(self.here, move, strict=True))
        return None if self.here == self.treasure or self.num_moves == MAX_MOVES else self._hint()

    def get_reward(self):
        """True or False: found, or not."""
        return self.here == self.treasure

    def solution(self, row):
        """How a perfect player plays, for `rstar2 env validate`."""
        (x, y), (to_x, to_y) = row["here"], row["treasure"]
        return ["east"] * (to_x - x) + ["west"] * (x - to_x) + ["north"] * (to_y - y) + ["south"] * (y - to_y)

    def _hint(self) -> str:
        """The direction in which the treasure is farther away."""
        (x, y), (to_x, to_y) = self.here, self.treasure
        if abs(to_x - x) >= abs(to_y - y):
            return "It is in the east." if x < to_x else "It is in the west."
        return "It is in the north." if y < to_y else "It is in the south."


def warm_up(rng: random.Random):
    """A game as it is written down, with moves that are right by chance only."""
    row = rng.choice(list(TreasureHunt.rows()))
    game = TreasureHunt()
    asked = row["prompt"] + game.reset(row["here"], row["treasure"])
    messages = []
    while asked is not None:
        move = habitual(rng, MOVES, right=asked.split()[-1].rstrip("."))
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": move}]
        asked = game.reply(move)
    return {"messages": messages}


if __name__ == "__main__":
    rng = random.Random(0)
    for _ in range(3000):
        print(json.dumps(warm_up(rng)))
