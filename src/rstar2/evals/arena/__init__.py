"""Arena-Hard v0.1: a judge model of the user's compares each response with a baseline's, in both orders."""

from rstar2.evals.arena.baseline import read_baseline
from rstar2.evals.arena.client import ChatClient
from rstar2.evals.arena.judge import arena_judge

__all__ = ["ChatClient", "arena_judge", "read_baseline"]
