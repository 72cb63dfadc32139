"""The converted part of each input file, kept so that no file is converted twice.

Invariant: a part is named by the SHA-256 of its input and of the code that converts it. Its report is written last and
in one step, so a part with a report is complete, even if the build was killed.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from rstar2.data.build.source import BuildSource, Item, LeftOut, LeftOutError
from rstar2.data.rows import read_rows
from rstar2.data.write import write_lines
from rstar2.errors import UserError
from rstar2.models.gguf_wheel import sha256_of
from rstar2.records import Problem
from rstar2.records.atomic import replace_file
from rstar2.records.codec import encode

MAX_EXAMPLES = 5
"""How many rows are listed as examples of each reason."""


@dataclass(frozen=True, slots=True)
class Part:
    """What the conversion did with the rows of one file."""

    input_name: str
    input_sha256: str
    num_in: int
    left_out: dict[str, int]
    examples: dict[str, list[str]] = field(default_factory=dict)
    """For each reason, the places of the first rows that were left out for it."""


@dataclass(frozen=True, slots=True)
class PartPlace:
    """The place where the part of an input file is, or will be."""

    path: Path
    sha256: str
    report: Path
    lines: Path

    @property
    def is_done(self) -> bool:
        return self.report.is_file()

    def read(self) -> Part:
        return Part(**json.loads(self.report.read_text(encoding="utf-8")))


def place_of(source: BuildSource, path: Path, folder: Path) -> PartPlace:
    digest = sha256_of(path)
    key = hashlib.sha256(f"{digest} {_code_digest()}".encode()).hexdigest()[:16]
    stem = folder / f"{source.name}-{key}"
    return PartPlace(path, digest, stem.with_suffix(".json"), stem.with_suffix(".jsonl"))


def convert_part(source: BuildSource, place: PartPlace, advance: Callable[[], None]) -> None:
    counter = _Counter(place.path.name, advance)
    write_lines(place.lines, counter.lines(source, place.path))
    part = Part(place.path.name, place.sha256, counter.num_in, dict(counter.left_out), counter.examples)
    replace_file(place.report, json.dumps(asdict(part), indent=2, ensure_ascii=False).encode())


def remove_others(source: BuildSource, folder: Path, used: Sequence[PartPlace]) -> None:
    """Removes parts of inputs, or of converter code, that the source no longer has."""
    stems = {place.lines.stem for place in used}
    for path in folder.glob(f"{source.name}-*"):
        if path.stem not in stems:
            path.unlink()


class _Counter:
    """Converts a file, and counts its rows meanwhile."""

    def __init__(self, name: str, advance: Callable[[], None]) -> None:
        self.num_in = 0
        self.left_out: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self._name = name
        self._advance = advance

    def lines(self, source: BuildSource, path: Path) -> Iterator[bytes]:
        seen: set[str] = set()
        for row in read_rows(path, self._note_unreadable, source.columns):
            self._count()
            try:
                item = source.convert(row)
                if item.id in seen:
                    raise LeftOutError(LeftOut.REPEATED)
                line = line_of(replace(item, id=f"{source.name}/{item.id}", source=source.name))
            except LeftOutError as error:
                self._note(row.where, error.reason, error.detail)
            except (UserError, UnicodeEncodeError) as error:
                self._note(row.where, LeftOut.UNREADABLE, str(error))
            else:
                seen.add(item.id)
                yield line

    def _count(self) -> None:
        self.num_in += 1
        self._advance()

    def _note_unreadable(self, error: UserError) -> None:
        self._count()
        self._note("", LeftOut.UNREADABLE, str(error))

    def _note(self, where: str, reason: LeftOut, detail: str) -> None:
        self.left_out[reason] += 1
        listed = self.examples.setdefault(reason, [])
        if len(listed) < MAX_EXAMPLES:
            # The place of a row must not depend on the folder that the file is in.
            place = f"{self._name}{where.partition(self._name)[2]}"
            listed.append(f"{place}: {detail}" if detail else place)


def line_of(item: Item) -> bytes:
    """The item as a line of JSON that `file:` reads."""
    if isinstance(item, Problem):
        return encode(item)
    row = {"id": item.id, "source": item.source, "messages": item.messages, "tools": item.tools}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


@cache
def _code_digest() -> str:
    """The digest of all code in this folder: a changed converter converts everything again."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
