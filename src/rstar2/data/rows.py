"""Reads the rows of a data file in order, each with a text that says where it is.

JSON Lines, a JSON array, CSV (each of them plain or gzipped) and Parquet. A file that is not what its name says, and a
line that is not a row, are user errors that name the file and the line. No line is skipped without an error.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from rstar2.data.mistakes import OnMistake, raise_it
from rstar2.errors import UserError
from rstar2.models.storage import require_installed

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".jsonl.gz", ".json.gz", ".csv.gz")


@dataclass(frozen=True, slots=True)
class Row:
    """One row as the file has it; `where` names the file and the line."""

    values: dict[str, Any]
    where: str


def is_data_file(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def stem(name: str) -> str:
    """The file's name without its format's ending: `aime24` for `aime24.jsonl.gz`."""
    ending = max((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), key=len, default="")
    return name[: len(name) - len(ending)]


def read_rows(path: Path, on_mistake: OnMistake = raise_it, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """All rows of one file, in its order. `on_mistake` gets each line that is no row; a file that cannot be read
    further raises. If `columns` are given, only these are read of a Parquet file."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise UserError(f"data file {path} {what}: give the path of a {', '.join(SUFFIXES)} file")
    if not is_data_file(path.name):
        raise UserError(f"data file {path} has none of the endings {', '.join(SUFFIXES)}: rename or convert it")
    if path.name.lower().endswith(".parquet"):
        return _parquet_rows(path, columns)
    return _text_rows(path, on_mistake)


def _text_rows(path: Path, on_mistake: OnMistake) -> Iterator[Row]:
    name = path.name.lower().removesuffix(".gz")
    try:
        with io.TextIOWrapper(_open_bytes(path), encoding="utf-8", newline="") as file:
            if name.endswith(".csv"):
                yield from _csv_rows(path, file)
            elif name.endswith(".json") and _starts_an_array(file):
                yield from _array_rows(path, file, on_mistake)
            else:
                yield from _json_lines(path, file, on_mistake)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is not a complete gzip file ({error}): get it again") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{_undecodable(path)}: not UTF-8 text; convert the file") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _open_bytes(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.name.lower().endswith(".gz") else path.open("rb")


def _undecodable(path: Path) -> str:
    """The first place that is not UTF-8, by line and byte: the decoder reads in blocks, whose offsets help nobody. A
    newline byte is part of no longer character, so lines can be decoded one by one."""
    with _open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"{path}, line {number}, byte {error.start + 1} (0x{line[error.start]:02x})"
    return str(path)


def _starts_an_array(file: TextIO) -> bool:
    """Whether a `.json` file holds an array: some sets call JSON Lines `.json`, so the first character decides."""
    start = file.read(1)
    while start and start.isspace():
        start = file.read(1)
    file.seek(0)
    return start == "["


def _json_lines(path: Path, file: TextIO, on_mistake: OnMistake) -> Iterator[Row]:
    # Lines are split only at newlines: a JSON text may hold other Unicode line separators unescaped.
    for number, line in enumerate(file, start=1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield Row(_object(_parsed(line.rstrip("\n"), where), where), where)
            except UserError as error:
                on_mistake(error)


def _array_rows(path: Path, file: TextIO, on_mistake: OnMistake) -> Iterator[Row]:
    for number, item in enumerate(_parsed(file.read(), str(path)), start=1):
        where = f"{path}, item {number}"
        try:
            yield Row(_object(item, where), where)
        except UserError as error:
            on_mistake(error)


def _csv_rows(path: Path, file: TextIO) -> Iterator[Row]:
    # Cells may be longer than the module's default limit of 128 KiB.
    csv.field_size_limit(1 << 24)
    reader = csv.DictReader(file)
    try:
        for values in reader:
            yield Row({key: value for key, value in values.items() if key}, f"{path}, line {reader.line_num}")
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from error


def _parquet_rows(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    require_installed(("pyarrow",), f"reading {path.name}")
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            wanted = None if columns is None else [each for each in columns if each in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=1024, columns=wanted):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(values, f"{path}, row {number}")
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(
            f"{path} is not a readable Parquet file ({str(error).splitlines()[0]}): get it again"
        ) from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise UserError(f"{where}: not JSON ({place}: {error.msg}); correct the line, or remove it") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error}); correct the line, or remove it") from error


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(
            f'{where}: expected an object with columns, as in {{"problem": …}}, found {type(value).__name__}'
        )
    return value
