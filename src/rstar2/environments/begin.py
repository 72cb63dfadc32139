"""Turns a question into a problem, and an episode into the beginning of a conversation."""

import json

from rstar2.agent import ChatFormat, Transcript
from rstar2.environments.messages import ASKED
from rstar2.environments.protocol import Episode, Opening
from rstar2.records import Problem


def asked_problem(text: str) -> Problem:
    """The problem for a question, or for a JSON object, which is the row of a data set."""
    try:
        row = json.loads(text) if text.startswith("{") else None
    except ValueError:
        row = None
    if isinstance(row, dict):
        return Problem(ASKED, text, str(row.get("answer", "")), row=row)
    return Problem(ASKED, text, "", row=dict.fromkeys(("prompt", "problem", "question"), text))


def start_of(chat: ChatFormat, opening: Opening) -> Transcript:
    """The prompt that all episodes of a problem share."""
    return Transcript.start(chat, opening.messages, opening.tools)


def observed_start(chat: ChatFormat, opening: Opening, episode: Episode) -> Transcript:
    """The prompt with the first observation of this episode."""
    if not episode.observation:
        return start_of(chat, opening)
    *earlier, last = opening.messages
    observed = {**last, "content": last["content"] + episode.observation}
    return Transcript.start(chat, (*earlier, observed), opening.tools)
