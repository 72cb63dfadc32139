"""Says in a sentence, from the facts of its group alone, why a rollout was kept or left out. Pure."""

from rstar2.algo.penalties import Penalty, TracePenalty
from rstar2.records import Group, Selection


def penalty_of(group: Group, index: int) -> float | None:
    """The penalty that resampling gave the rollout; None if it has none."""
    error, form = group.error_penalties[index], group.format_penalties[index]
    repetition = group.repetition_penalties[index] if group.repetition_penalties else 0.0
    if error is None or form is None or repetition is None:
        return None
    return Penalty(group.penalty).of(TracePenalty(error, form, repetition))


def why(group: Group, index: int) -> str:
    selection = group.selections[index]
    if selection is Selection.UNSCORED:
        return (
            "Not scored: our own machinery failed, the grader could not decide, its tree had no tokens left for it, or "
            "it was truncated and the recipe leaves such rollouts out. Nothing can be learnt from it."
        )
    if selection is Selection.EQUAL_REWARDS:
        return (
            f"Dropped with all of its group: every kept rollout has the reward {group.rewards[index]:g}, "
            "so there is nothing to compare."
        )
    is_success = group.is_success[index]
    peers = [i for i, reward in enumerate(group.rewards) if reward is not None and group.is_success[i] == is_success]
    num_kept = sum(group.selections[i] in (Selection.KEPT, Selection.EQUAL_REWARDS) for i in peers)
    done = "Kept" if selection is Selection.KEPT else "Left out by resampling"
    sentence = f"{done}: {num_kept} of {len(peers)} {'successes' if is_success else 'failures'} were kept."
    return f"{sentence} {_rank(group, index, peers) if is_success else 'Penalties play no part among failures.'}"


def _rank(group: Group, index: int, peers: list[int]) -> str:
    own = penalty_of(group, index) or 0.0
    others = [penalty_of(group, i) or 0.0 for i in peers if i != index]
    if not others:
        return f"Its penalty is {own:.2f}; there is no other success."
    num_lower, num_higher = sum(p < own for p in others), sum(p > own for p in others)
    return f"Its penalty is {own:.2f}: {num_lower} other successes have a lower, {num_higher} a higher one."
