"""Analyses how a model thinks, from its traces: where it is unsure, what it does with tool results, how it reacts to
errors.

Promise: traces in, frozen dataclasses out; every number is defined in docs/analysis.md and tested on traces made by
hand; a run of any size is read as a stream and a bounded sample; values that a run does not hold are left out, which a
sentence says, and never guessed. No torch.
May import: records.
"""

from rstar2.analysis.analyze import Analysis, analyze
from rstar2.analysis.analyze_run import analyze_run
from rstar2.analysis.classes import TokenClass
from rstar2.analysis.examine import Measure, TraceTokens, TurnTokens, examine
from rstar2.analysis.figures import draw_figures
from rstar2.analysis.kinds import TokenKind
from rstar2.analysis.report import as_json
from rstar2.analysis.token_texts import TokenizerFile, TokenTexts, find_token_texts

__all__ = [
    "Analysis",
    "Measure",
    "TokenClass",
    "TokenKind",
    "TokenTexts",
    "TokenizerFile",
    "TraceTokens",
    "TurnTokens",
    "analyze",
    "analyze_run",
    "as_json",
    "draw_figures",
    "examine",
    "find_token_texts",
]
