"""Groups the answers to a problem into votes: answers that the grader calls equal, right or wrong, are one.

Right answers all equal the gold, so they are one class already. Wrong answers are compared with each other, without
computer algebra if that decides and otherwise by the grader, but only for problems whose outcome depends on it: those
with some right answers, and at least as many wrong ones.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from rstar2.agent.retry import with_retries
from rstar2.evals.sample import Sample
from rstar2.grading import Grade, Grader, decide
from rstar2.records import Verdict
from rstar2.rollout.judge import FIRST_PAUSE_S, MAX_RETRIES

Same = Callable[[str, str], Awaitable[bool]]
"""Whether an answer equals another, which is treated as the gold. It uses computer algebra, so it is slow."""

NUM_AT_ONCE = 64


def graders_equality(grader: Grader) -> Same:
    """A `Same` that asks the grader. It raises InfrastructureError if the grader keeps failing."""

    async def same(answer: str, gold: str) -> bool:
        grade = await with_retries(lambda: grader.grade_answer(answer, gold), MAX_RETRIES, first_pause_s=FIRST_PAUSE_S)
        return grade.verdict is Verdict.RIGHT

    return same


async def majority_at_k(groups: Sequence[Sequence[Sample]], same: Same | None) -> float | None:
    """maj@k: the mean of `majority` over problems, given the scored samples of each. None if samples have no answers to
    vote with, or an outcome depends on computer algebra and `same` is None."""
    is_without_answers = any(
        sample.verdict in (Verdict.RIGHT, Verdict.WRONG) and sample.answer is None
        for group in groups
        for sample in group
    )
    if is_without_answers:
        return None
    places = asyncio.Semaphore(NUM_AT_ONCE)

    async def vote(group: Sequence[Sample]) -> float | None:
        async with places:
            return await majority(group, same)

    votes = await asyncio.gather(*map(vote, groups))
    known = [value for value in votes if value is not None]
    if len(known) < len(votes):
        return None
    return sum(known) / len(known) if known else 0.0


async def majority(samples: Sequence[Sample], same: Same | None) -> float | None:
    """Whether the most frequent answer is right; among equally frequent ones, the share of right ones. A sample without
    an answer does not vote. None if that depends on computer algebra and `same` is None."""
    num_right = sum(sample.is_success for sample in samples)
    wrong = Counter(sample.answer for sample in samples if not sample.is_success and sample.answer is not None)
    if not num_right or num_right > wrong.total():
        return float(num_right > 0)
    pools = await pooled(wrong, same)
    if pools is None:
        return None
    sizes = list(pools.values())
    largest = max(sizes)
    return 0.0 if num_right < largest else 1.0 / (1 + sizes.count(num_right))


async def pooled(counts: Counter[str], same: Same | None) -> dict[str, int] | None:
    """How often each answer was given, with all its spellings counted under the first of them. None if that depends on
    computer algebra and `same` is None."""
    pools: dict[str, int] = {}
    for answer, count in counts.items():
        equal = next((known for known in pools if _decided(answer, known)), answer)
        pools[equal] = pools.get(equal, 0) + count
    sizes: dict[str, int] = {}
    for answer, size in pools.items():
        for known in sizes:
            if _decided(answer, known) is not None:
                continue
            if same is None:
                return None
            if await same(*_in_order(answer, known)):
                sizes[known] += size
                break
        else:
            sizes[answer] = size
    return sizes


def _decided(answer: str, other: str) -> bool | None:
    """Whether the answers are equal; None if only computer algebra can decide."""
    decided = decide(*_in_order(answer, other))
    return decided.verdict is Verdict.RIGHT if isinstance(decided, Grade) else None


def _in_order(answer: str, other: str) -> tuple[str, str]:
    """The pair as answer and gold. The plainer one is the gold: a decimal may approximate a value, and a printed float
    a shorter number."""
    gold, answer = sorted((answer, other), key=lambda text: ("." in text, len(text), text))
    return answer, gold
