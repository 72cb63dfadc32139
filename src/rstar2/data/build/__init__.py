"""The report's training sets from their public sources: one file a source, one line in `extensions` each.

Promise: a converter is pure and turns a row into a conversation or a problem, or says why it cannot; every row is
counted. A build that was killed resumes where it stopped: nothing is downloaded or converted twice, and every file in
place is complete.
"""

from rstar2.data.build.report import BuildReport, SourceReport
from rstar2.data.build.run import BuildOptions, build_rl, build_sft
from rstar2.data.build.source import BuildSource, LeftOut, LeftOutError, sources_of

__all__ = [
    "BuildOptions",
    "BuildReport",
    "BuildSource",
    "LeftOut",
    "LeftOutError",
    "SourceReport",
    "build_rl",
    "build_sft",
    "sources_of",
]
