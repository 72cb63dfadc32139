"""Runs a build: gets the files, converts them to parts, filters these, and writes the sets and the report."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from rstar2.data.build.files import SourceFiles, folder_files, hub_files
from rstar2.data.build.parts import convert_part, place_of, remove_others
from rstar2.data.build.report import IN_REPORT, BuildReport, SetReport, Tally, write_report
from rstar2.data.build.source import BuildSource, LeftOut, sources_of
from rstar2.data.by_name import load_any_problems
from rstar2.data.catalog import CATALOG
from rstar2.data.cells import ordered_json
from rstar2.data.curate import CurationRules, curate
from rstar2.data.decontaminate import BenchmarkGrams
from rstar2.data.load import find_files, get_set
from rstar2.data.rows import Row, read_rows
from rstar2.data.write import rejects_path, write_lines, write_problems, write_rejects
from rstar2.errors import UserError
from rstar2.models.gguf_wheel import sha256_of
from rstar2.models.progress import FetchProgress, SilentProgress
from rstar2.models.storage import exclusive
from rstar2.records import Problem
from rstar2.records.codec import decode

PARTS_FOLDER = ".build"

Counting = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Shows the progress of converting: it takes a title and a number of rows, and gives a function that is called for each
row."""


def _silently(_title: str, _total: int) -> AbstractContextManager[Callable[[], None]]:
    return nullcontext(lambda: None)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    from_folder: Path | None = None
    """The user's own copies of the sources. With it nothing is downloaded."""
    source_names: Sequence[str] = ()
    """The sources to use; none means all."""
    revisions: dict[str, str] = field(default_factory=dict)
    """The commits to use instead of the pinned ones, by source."""
    against: Sequence[str] = ()
    """Test sets whose problems must not be in the result: names of the catalog, or files."""
    min_overlap_share: float = 0.0
    data_dir: Path | None = None
    progress: FetchProgress = field(default_factory=SilentProgress)
    counting: Counting = _silently


@dataclass(frozen=True, slots=True)
class _Converted:
    source: BuildSource
    tally: Tally
    lines: list[Path]

    def rows(self) -> Iterator[Row]:
        """Every row once, whichever files it is in."""
        seen: set[str] = set()
        for path in self.lines:
            for row in read_rows(path):
                if row.values["id"] in seen:
                    self.tally.leave_out(LeftOut.REPEATED, row.values["id"])
                else:
                    seen.add(row.values["id"])
                    yield row


def build_sft(out: Path, options: BuildOptions) -> BuildReport:
    """Builds the warm-up's conversations, into one file for each set of the recipe."""
    with _parts_of(out) as parts:
        grams = _benchmarks(options)
        all_converted = _convert_all("sft", parts, options)
        paths = [out / f"{stem}.jsonl" for stem in dict.fromkeys(each.source.file for each in all_converted)]
        seen: set[str] = set()
        for path in paths:
            members = [each for each in all_converted if each.source.file == path.stem]
            write_lines(path, (line for each in members for line in _conversations(each, grams, options, seen)))
        return _reported("sft", out, paths, all_converted, options)


def build_rl(out: Path, options: BuildOptions) -> BuildReport:
    """Builds the problems of reinforcement learning, all sources in one file, and beside it a file of rejected ones."""
    with _parts_of(out) as parts:
        grams = _benchmarks(options)
        all_converted = _convert_all("rl", parts, options)
        tallies = {each.source.name: each.tally for each in all_converted}
        problems = [
            decode(Problem, json.dumps(row.values, ensure_ascii=False).encode())
            for each in all_converted
            for row in each.rows()
        ]
        curated = curate(problems, grams, rules=CurationRules(options.min_overlap_share, needs_positive=True))
        for problem in curated.kept:
            tallies[problem.source].keep()
        for rejected in curated.rejected:
            what = f"{rejected.problem.id}: {rejected.detail}" if rejected.detail else rejected.problem.id
            tallies[rejected.problem.source].leave_out(rejected.reason, what)
        path = out / f"{all_converted[0].source.file}.jsonl"
        write_rejects(rejects_path(path), curated.rejected)
        write_problems(path, curated.kept)
        return _reported("rl", out, [path], all_converted, options)


@contextmanager
def _parts_of(out: Path) -> Iterator[Path]:
    """The folder of converted parts; no second build can write into it at the same time."""
    parts = out / PARTS_FOLDER
    parts.mkdir(parents=True, exist_ok=True)
    with exclusive(parts):
        yield parts


def _benchmarks(options: BuildOptions) -> BenchmarkGrams | None:
    """Loads the benchmarks, before anything else: a missing test set must not cost hours of downloads."""
    for name in options.against:
        entry = CATALOG.get(name)
        if entry is not None and options.from_folder is None and find_files(entry, options.data_dir) is None:
            get_set(entry, options.progress)
    loaded = {name: load_any_problems(name, options.data_dir) for name in options.against}
    return BenchmarkGrams(loaded) if loaded else None


def _convert_all(kind: str, parts: Path, options: BuildOptions) -> list[_Converted]:
    sources = [_at_revision(source, options.revisions) for source in sources_of(kind, options.source_names)]
    if unused := set(options.revisions) - {source.name for source in sources}:
        raise UserError(f"--revision names {unused.pop()!r}, which is no source of this build")
    folder = options.from_folder
    # All of a user's files are located before the first is converted.
    found = None if folder is None else [folder_files(source, folder) for source in sources]
    return [
        _convert(source, found[index] if found else hub_files(source, options.progress), parts, options)
        for index, source in enumerate(sources)
    ]


def _at_revision(source: BuildSource, revisions: dict[str, str]) -> BuildSource:
    if source.name not in revisions:
        return source
    return replace(source, hub=replace(source.hub, revision=revisions[source.name], sha256={}))


def _convert(source: BuildSource, files: SourceFiles, folder: Path, options: BuildOptions) -> _Converted:
    places = [place_of(source, path, folder) for path in files.paths]
    todo = [place for place in places if not place.is_done]
    if todo:
        with options.counting(f"converting {source.name}", source.num_rows) as advance:
            for place in todo:
                convert_part(source, place, advance)
    else:
        options.progress.note(f"{source.name} was converted before")
    remove_others(source, folder, places)
    tally = Tally(source, files.commit, [place.read() for place in places])
    return _Converted(source, tally, [place.lines for place in places])


def _conversations(
    each: _Converted, grams: BenchmarkGrams | None, options: BuildOptions, seen: set[str]
) -> Iterator[bytes]:
    for row in each.rows():
        row_id = row.values["id"]
        content = row_id.rpartition("/")[2]
        asked = "\n".join(message["content"] for message in row.values["messages"] if message["role"] == "user")
        overlap = grams.find(asked, options.min_overlap_share) if grams else None
        if content in seen:
            each.tally.leave_out(LeftOut.REPEATED, row_id)
        elif overlap is not None:
            each.tally.leave_out(LeftOut.CONTAMINATED, f"{row_id}: {overlap.benchmark} {overlap.problem_id}")
        else:
            seen.add(content)
            each.tally.keep()
            yield ordered_json(row.values).encode()


def _reported(
    kind: str, out: Path, paths: Sequence[Path], all_converted: Sequence[_Converted], options: BuildOptions
) -> BuildReport:
    sources = [each.tally.report() for each in all_converted]
    num_kept: Counter[str] = Counter()
    for each, source in zip(all_converted, sources, strict=True):
        num_kept[each.source.file] += source.num_kept
    sets = [SetReport(path.name, num_kept[path.stem], IN_REPORT.get(path.stem), sha256_of(path)) for path in paths]
    report = BuildReport(kind, sources, sets, list(options.against), options.min_overlap_share)
    write_report(out / f"build-{kind}.json", report)
    return report
