"""The supervised warm-up: it learns packed conversations, on the assistant's own tokens.

Invariant: the loss of a step is a mean over the assistant's tokens of all its conversations, however they are packed
and on however many ranks; which conversations a step takes is a function of the seed and its number.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from rstar2.agent import ChatFormat
from rstar2.config import Recipe
from rstar2.data import Conversation
from rstar2.errors import UserError
from rstar2.settings import pick
from rstar2.train.learning.forward import Pack
from rstar2.train.learning.optimizer import Optimizer, cosine_factor
from rstar2.train.learning.packing import pack
from rstar2.train.learning.sft_examples import Example, render_conversation
from rstar2.train.policy.policy import Policy
from rstar2.train.seeds import Cursor, take
from rstar2.train.sharding.ranks import ALONE, Ranks
from rstar2.train.state import WARM_UP


@dataclass(frozen=True, slots=True)
class SftSettings:
    epochs: int
    lr: float
    warmup_share: float
    batch_size: int
    micro_batch_tokens: int
    max_grad_norm: float
    stream: str

    @classmethod
    def of(cls, recipe: Recipe, micro_batch_tokens: int) -> Self:
        stream = f"{recipe.seed}/{WARM_UP}"
        return pick(cls, recipe.sft, recipe.train, stream=stream, micro_batch_tokens=micro_batch_tokens)

    def num_steps(self, num_examples: int) -> int:
        return max(1, self.epochs * num_examples // self.batch_size)


def render_all(conversations: Sequence[Conversation], chat: ChatFormat, max_tokens: int) -> tuple[list[Example], int]:
    """The rendered conversations that fit into `max_tokens`, and how many are too long."""
    # Tokenizers release the interpreter's lock while they work.
    with ThreadPoolExecutor() as pool:
        examples = list(pool.map(lambda conversation: render_conversation(conversation, chat), conversations))
    fitting = [example for example in examples if len(example.token_ids) <= max_tokens]
    if not fitting:
        raise UserError(f"sft.max_tokens of {max_tokens} is below all {len(examples)} conversations: raise it")
    return fitting, len(examples) - len(fitting)


def sft_step(
    policy: Policy,
    optimizer: Optimizer,
    examples: Sequence[Example],
    step: int,
    settings: SftSettings,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """One optimizer step; `step` counts from 0."""
    epoch, position = divmod(step * settings.batch_size, len(examples))
    indices, _ = take(Cursor(epoch, position), settings.batch_size, len(examples), settings.stream)
    chosen = [examples[index] for index in indices]
    num_tokens = sum(example.num_learnt for example in chosen)
    loss = 0.0
    lengths = [len(example.token_ids) for example in chosen]
    for batch in ranks.share(pack(lengths, settings.micro_batch_tokens, ranks.size)):
        log_probs, _ = policy.token_log_probs(_packed([chosen[index] for index in batch], policy))
        share = -log_probs.sum() / num_tokens
        share.backward()  # type: ignore[no-untyped-call]
        loss += float(share.detach())
    lr = settings.lr * cosine_factor(step, settings.num_steps(len(examples)), settings.warmup_share)
    grad_norm = optimizer.step(lr, settings.max_grad_norm)
    return {**ranks.total({"loss": loss}), "lr": lr, "grad_norm": grad_norm, "num_tokens": num_tokens}


def _packed(examples: Sequence[Example], policy: Policy) -> Pack:
    if not examples:
        return Pack.blank(policy.device)
    return Pack.of([example.token_ids for example in examples], [example.mask for example in examples], policy.device)
