"""Computes all numbers of the analysis from a sample of traces. Pure: one pass, one trace in memory at a time."""

from collections.abc import Iterable
from dataclasses import dataclass

from rstar2.analysis.after_error import ErrorReaction, ReactionCounts, count_reactions, find_reactions
from rstar2.analysis.classes import ClassSpan, class_spans
from rstar2.analysis.entropy import EntropyCollector, EntropySummary, ResponseCollector, ResponseCurve
from rstar2.analysis.examine import Measure, TraceTokens, examine
from rstar2.analysis.kind_words import KindCollector, KindWords
from rstar2.analysis.kinds import TokenKind
from rstar2.analysis.over_training import CallCount, ErrorCollector, StepErrors
from rstar2.analysis.token_texts import TokenTexts
from rstar2.errors import UserError
from rstar2.records import Trace


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """The summary of one trace: enough to find each of its classed tokens, given the entropies in the trace itself."""

    id: str
    step: int
    is_right: bool | None
    num_tokens: int
    mean: float | None
    """The mean of the measure; None if the trace does not hold it."""
    threshold: float | None
    """The lowest value among the trace's highest fifth; None if the trace does not hold the measure."""
    spans: tuple[ClassSpan, ...]
    forking: tuple[tuple[int, int], ...]
    """Forking tokens as pairs of turn and token in the turn, from 0."""
    reflection: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The source of a sample."""

    steps: tuple[int, ...]
    num_traces: int
    num_held: int
    """How many traces these steps have."""

    def __str__(self) -> str:
        where = f"step {self.steps[0]}" if len(self.steps) == 1 else f"steps {self.steps[0]} to {self.steps[-1]}"
        if self.num_traces == self.num_held:
            return f"all {self.num_held:,} traces of {where}"
        return f"a sample of {self.num_traces:,} of the {self.num_held:,} traces of {where}"


@dataclass(frozen=True, slots=True)
class Analysis:
    measure: Measure
    num_traces: int
    num_measured_traces: int
    """How many traces hold the measure for each of their tokens. Figures of tokens are about these."""
    has_texts: bool
    entropy: EntropySummary | None
    """The summary of the measure; None if no trace holds it."""
    kinds: dict[TokenKind, KindWords]
    """The words of each kind of token; empty without texts or measure."""
    around_responses: tuple[ResponseCurve, ...]
    calls: CallCount
    """The tool calls of all sampled traces. The viewer counts those of all traces of a step."""
    after_errors: ReactionCounts
    reactions: tuple[ErrorReaction, ...]
    over_training: tuple[StepErrors, ...]
    traces: tuple[TraceSummary, ...]
    notes: tuple[str, ...]
    """Sentences that say what could not be computed, and what would help."""
    looked_at: LookedAt | None = None
    """The source of the sample that everything except `over_training` is about; None if the traces do not come from a
    run."""


def analyze(
    traces: Iterable[Trace], token_texts: TokenTexts | None = None, measure: Measure = Measure.ENTROPY
) -> Analysis:
    """Analyses traces. `token_texts` must be of the tokenizer that they were sampled with; UserError if most turns
    decode to other texts. Without it there are no classes, kinds and words."""
    entropy, around, kinds, errors = EntropyCollector(), ResponseCollector(), KindCollector(), ErrorCollector()
    reactions, summaries = list[ErrorReaction](), list[TraceSummary]()
    num_measured = num_turns = num_misread = 0
    calls = CallCount()
    for trace in traces:
        calls = calls.with_trace(trace)
        reactions += find_reactions(trace)
        errors.add(trace)
        tokens = examine(trace, token_texts, measure)
        summaries.append(_summary(trace, tokens))
        if tokens is not None:
            num_measured += 1
            num_turns += len(tokens.turns)
            num_misread += tokens.num_misread_turns
            entropy.add(tokens)
            around.add(tokens)
            kinds.add(tokens)
    if 2 * num_misread > num_turns:
        raise UserError(
            f"--tokenizer: {num_misread} of {num_turns} turns read otherwise than in the traces; "
            f"give the tokenizer of the model that the run used"
        )
    has_texts = token_texts is not None
    return Analysis(
        measure=measure,
        num_traces=len(summaries),
        num_measured_traces=num_measured,
        has_texts=has_texts,
        entropy=entropy.summary(),
        kinds=kinds.table() if has_texts and num_measured else {},
        around_responses=around.curves(),
        calls=calls,
        after_errors=count_reactions(reactions),
        reactions=tuple(reactions),
        over_training=errors.rows(),
        traces=tuple(summaries),
        notes=tuple(_notes(measure, len(summaries), num_measured, num_misread)),
    )


def _summary(trace: Trace, tokens: TraceTokens | None) -> TraceSummary:
    places: dict[TokenKind, list[tuple[int, int]]] = {kind: [] for kind in TokenKind}
    spans: list[ClassSpan] = []
    mean = threshold = None
    if tokens is not None:
        values, is_high = tokens.values, tokens.is_high
        mean = float(values.mean())
        threshold = float(values[is_high].min()) if is_high.any() else None
        for number, turn in enumerate(tokens.turns):
            spans += class_spans(number, turn.classes)
            for place, kind in enumerate(turn.kinds):
                if kind is not None:
                    places[kind].append((number, place))
    return TraceSummary(
        id=trace.id,
        step=trace.step,
        is_right=trace.is_right,
        num_tokens=trace.num_sampled_tokens,
        mean=mean,
        threshold=threshold,
        spans=tuple(spans),
        forking=tuple(places[TokenKind.FORKING]),
        reflection=tuple(places[TokenKind.REFLECTION]),
    )


def _notes(measure: Measure, num_traces: int, num_measured: int, num_misread: int) -> Iterable[str]:
    if num_traces == 0:
        yield "There are no traces."
        return
    if num_measured < num_traces and measure is Measure.ENTROPY:
        yield (
            f"{num_traces - num_measured} of {num_traces} traces hold no entropies, so nothing is said about their "
            f"tokens. Entropies are recorded when sampling asks for them; --surprisal looks at minus the "
            f"log-probability of each token instead, which is another measure."
        )
    elif num_measured < num_traces:
        yield f"{num_traces - num_measured} of {num_traces} traces hold no log-probabilities: nothing on their tokens."
    if measure is Measure.SURPRISAL:
        yield "The values are surprisals (minus the log-probability of the token drawn), not entropies."
    if num_misread:
        yield f"{num_misread} turns read a little otherwise under this tokenizer than in the traces."
