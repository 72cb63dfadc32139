"""What the report publishes, to stand beside what was measured here. Percent."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PublishedModel:
    name: str
    scores: dict[str, float]
    response_tokens: dict[str, int] = field(default_factory=dict)


PUBLISHED = (
    PublishedModel(
        "rStar2-Agent-14B",
        {
            "math500": 97.8,
            "aime24": 80.6,
            "aime25": 69.8,
            "hmmt_feb25": 52.7,
            "gpqa_diamond": 60.9,
            "bfcl": 60.8,
            "ifeval": 83.4,
            "arena_hard": 86.6,
        },
        {"aime24": 9_340, "aime25": 10_943},
    ),
    PublishedModel(
        "its base after SFT only",
        {
            "math500": 57.4,
            "aime24": 3.3,
            "aime25": 0.0,
            "gpqa_diamond": 42.1,
            "bfcl": 63.1,
            "ifeval": 83.7,
            "arena_hard": 86.8,
        },
    ),
    PublishedModel("DeepSeek-R1 671B", {"math500": 97.3, "aime24": 79.8, "aime25": 70.0, "hmmt_feb25": 44.4}),
)

CAVEATS = {
    "bfcl": "BFCL: the published number is of v3 as a whole, also with several turns; measured here is its single-turn "
    "part, all categories together.",
    "arena_hard": "Arena-Hard: a win rate depends on the judge and on the baseline's answers; compare only where both "
    "are the same.",
    "ifeval": "IFEval: prompt-level strict accuracy; sentences and capital words are counted by rules, not by nltk.",
}
"""Why a number here and a published one of the same name may differ, whatever the model."""
