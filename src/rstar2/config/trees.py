"""`[rollout.tree]` and `[eval.tree]`: the rollouts of a problem as a tree."""

from pydantic import Field

from rstar2.config.section import ForkPointsName, ForkPolicyName, Section, TreeAdvantageName
from rstar2.extensions import FORK_POINTS, FORK_POLICIES, TREE_ADVANTAGES


class ForkSection(Section):
    """`[eval.tree]`: a search in place of independent samples. If left out, samples share nothing but the prompt."""

    num_roots: int = Field(
        ge=1,
        examples=[8],
        description="Rollouts of a problem that begin at the prompt. The others (in training up to group_size times "
        "oversample_factor, in an evaluation up to num_samples) continue one that has ended from one of its "
        "points. A quarter to a half is common.",
    )
    num_rounds: int = Field(
        1,
        ge=1,
        description="Rounds in which the other rollouts are sampled. In each the policy knows what all earlier ones "
        "came to, and waits for them: more rounds choose better, and leave engines idle for longer.",
    )
    policy: ForkPolicyName = Field(
        "uniform", description=f"At which of the points rollouts fork. {FORK_POLICIES.describe()}"
    )
    points: ForkPointsName = Field(
        "results",
        description=f"Where rollouts may be forked. {FORK_POINTS.describe()} Where a problem's rollouts have no such "
        "point, further ones begin at the prompt.",
    )
    max_generated_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens to sample for one problem; shared ones count once. After the roots a rollout is begun only "
        "if it is expected to fit, so a tree may have fewer rollouts than there could be, and may exceed the tokens "
        "by what its last round cost more than expected. If left out, the number of rollouts alone is the limit.",
    )


class TreeSection(ForkSection):
    """`[rollout.tree]`: the rollouts of a problem as a tree. If left out, they share nothing but the prompt."""

    advantage: TreeAdvantageName = Field(
        "leaves",
        description="The advantage of a turn, or of the part of one before or after a fork. "
        f"{TREE_ADVANTAGES.describe()} Both use algo.advantage to compare.",
    )
