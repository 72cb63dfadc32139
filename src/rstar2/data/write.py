"""Writes problems to a file that `file:PATH` reads back: JSON Lines, gzipped if the name says so, in one step."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

from rstar2.data.curate import Rejected
from rstar2.errors import UserError
from rstar2.records import Problem
from rstar2.records.atomic import replace_file
from rstar2.records.codec import encode

WRITTEN_SUFFIXES = (".jsonl", ".jsonl.gz")


def require_writable_name(path: Path) -> None:
    if not path.name.endswith(WRITTEN_SUFFIXES):
        raise UserError(f"{path}: give a name that ends in {' or '.join(WRITTEN_SUFFIXES)}")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}; make it first")


def require_other_file(path: Path, inputs: Iterable[Path]) -> None:
    """Raises UserError if `path` is one of the inputs, by whatever name."""
    for source in inputs:
        if path.resolve() == source.resolve() or (path.exists() and source.exists() and path.samefile(source)):
            raise UserError(f"{path} is an input, {source}, and would be overwritten: give -o another name")


def rejects_path(path: Path) -> Path:
    """The path of the rejects, beside the file: `rl.rejects.jsonl` for `rl.jsonl`."""
    ending = next(suffix for suffix in WRITTEN_SUFFIXES[::-1] if path.name.endswith(suffix))
    return path.with_name(f"{path.name.removesuffix(ending)}.rejects{ending}")


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    write_lines(path, (encode(problem) for problem in problems))


def write_rejects(path: Path, rejected: Iterable[Rejected]) -> None:
    """Writes each rejected problem with its reason, so that people can look, in a file that is data like any other."""
    write_lines(path, (_with_reason(each) for each in rejected))


def _with_reason(rejected: Rejected) -> bytes:
    problem = json.loads(encode(rejected.problem))
    return json.dumps(
        {**problem, "reason": rejected.reason, "detail": rejected.detail}, ensure_ascii=False, separators=(",", ":")
    ).encode()


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Writes the lines in one step, so that the file is complete or unchanged."""
    content = b"".join(line + b"\n" for line in lines)
    # Gzip gets no time in its header, so that the same rows give the same bytes.
    replace_file(path, gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)
