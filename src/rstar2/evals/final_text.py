"""What a model says to its user, without what it thought: for checks of whole responses. Pure."""

import re

from rstar2.records import Trace

END_OF_TURN_KEY = "end_of_turn"
"""Key of `Trace.metadata`: the control token that the response ends with, which is none of its words."""

_THOUGHT_END = re.compile(r"</(?:reason|think)>")
_ANSWER_TAG = re.compile(r"</?answer>")


def final_text(trace: Trace) -> str:
    """What follows the last thought, without answer tags; everything, as it is, if there is neither."""
    said = trace.response_text.removesuffix(trace.metadata.get(END_OF_TURN_KEY, ""))
    words = _ANSWER_TAG.sub("", after_thought(said))
    return said if words == said else words.strip()


def after_thought(said: str) -> str:
    *_, after = _THOUGHT_END.split(said)
    return after
