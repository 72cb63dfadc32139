"""The tags around calls and results: one token each where the tokenizer has such tokens, or spelled in ordinary ones.

A tokenizer may have a token for a tag that its model never saw. Nothing tells that token from the thousands that stand
for nothing, so a model whose embedding and head are frozen cannot learn to write it; spelled, it can.
Invariant: spelling the tags changes the id of no other token. Theirs stay taken, under names that mean nothing.
"""

import json
from collections.abc import Collection
from typing import Any, Literal

from rstar2.agent.parse import CLOSE, OPEN

ToolTags = Literal["token", "text"]
"""token: as the tokenizer has them. text: in ordinary tokens."""

TOOL_TAGS = frozenset({OPEN, CLOSE, "<tool_response>", "</tool_response>"})


def spelled_name(token_id: int) -> str:
    """What the token of a spelled tag is called, so that its id stays taken."""
    return f"<|spelled_{token_id}|>"


def spell_tags(backend: Any, tags: Collection[str]) -> Any:
    """The `tokenizers.Tokenizer` as it would be had it no tokens for these tags."""
    from tokenizers import Tokenizer

    content = json.loads(backend.to_str())
    # An added token is renamed and not removed: those behind it are numbered anew when a tokenizer is read.
    names = {token["content"]: spelled_name(token["id"]) for token in content["added_tokens"]}
    names = {tag: name for tag, name in names.items() if tag in tags}
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, dict):
        content["model"]["vocab"] = {names.get(word, word): token_id for word, token_id in vocabulary.items()}
    else:  # of a unigram model: pairs of a word and its score, in the order of their ids
        content["model"]["vocab"] = [[names.get(word, word), score] for word, score in vocabulary]
    spelled = Tokenizer.from_str(json.dumps(content))
    known = {names.get(word, word): token_id for word, token_id in backend.get_vocab().items()}
    assert spelled.get_vocab() == known, "another token than those of the tags has changed"
    return spelled
