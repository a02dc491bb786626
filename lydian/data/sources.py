"""Where rows come from: JSONL, JSON, CSV, TSV and parquet files, `datasets` objects, any iterable of mappings, the hub.

Rows are only found and placed here; what their columns mean is the business of `lydian.data.layouts`.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import importlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from lydian.errors import DataError, LydianError, MissingExtraError

Report = Callable[[str, LydianError], None]
"""What to do with a bad row: takes its place and what is wrong; raises, or notes it and returns."""

FORMATS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
_HUB_ID = re.compile(r"(?P<id>[\w.-]+(/[\w.-]+)?)(:(?P<configuration>[\w.-]+))?")
_FIX_ROW = "Correct the row, or load with on_bad_row='skip' to leave it out and have it listed."


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """A row as it was found: `place` for messages (file:line), `label` and `number` (from 1) to make an id from."""

    place: str
    label: str
    number: int
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A source that is known to exist. `rows` reads it, once, and hands bad rows to the function it is called with."""

    description: str
    digest: str
    licence: str | None
    rows: Callable[[Report], Iterator[RawRow]]


def open_source(source: object, *, split: str, name: str | None) -> Opened:
    """Opens a path, a list of paths, a hub id, a `datasets` object or an iterable of mappings.

    Raises DataError for a source that is absent or unreadable, MissingExtraError for a hub id without `datasets`.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if path.is_file():
            return _open_files([path], name)
        hub_id = _HUB_ID.fullmatch(str(source)) if isinstance(source, str) and not path.exists() else None
        if hub_id is None or _format(path) is not None:
            raise _not_a_file(path)
        return _open_hub(hub_id["id"], hub_id["configuration"], split, name)
    if isinstance(source, list | tuple) and source and all(isinstance(entry, str | Path) for entry in source):
        return _open_files([Path(entry) for entry in source], name)
    if isinstance(source, Mapping):
        return _open_rows(_pick_split(source, split), name)
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        return _open_rows(source, name)
    raise DataError(
        where="the source of data",
        given=f"{type(source).__name__} {short(source)}",
        expected="a path, a list of paths, a `datasets` object, or an iterable of mappings",
        fix="Pass one of these.",
    )


def _open_files(paths: list[Path], name: str | None) -> Opened:
    for path in paths:
        if not path.is_file() or _format(path) is None:
            raise _not_a_file(path)
    contents = [path.read_bytes() for path in paths]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    labels = _labels(paths, name)

    def rows(report: Report) -> Iterator[RawRow]:
        for path, content, label in zip(paths, contents, labels, strict=True):
            reader = _READERS[_format(path) or ""]
            for place, number, values in reader(_unzip(content, path), str(path), report):
                yield RawRow(place=place, label=label, number=number, values=values)

    digest = digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return Opened(description=", ".join(map(str, paths)), digest=digest, licence=None, rows=rows)


def _labels(paths: list[Path], name: str | None) -> list[str]:
    """The file's stem, or `name`; with several files `name/stem`; with its folder where stems repeat."""
    stems = [Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem for path in paths]
    if len(set(stems)) < len(stems):
        stems = [f"{path.absolute().parent.name}/{stem}" for path, stem in zip(paths, stems, strict=True)]
    if name is None:
        return stems
    return [name] if len(stems) == 1 else [f"{name}/{stem}" for stem in stems]


def _format(path: Path) -> str | None:
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    return suffix if suffix in FORMATS else None


def _not_a_file(path: Path) -> DataError:
    given = "a folder" if path.is_dir() else "no such file" if not path.exists() else f"the ending {path.suffix!r}"
    return DataError(
        where=str(path),
        given=given,
        expected=f"a file ending in {', '.join(FORMATS)} (or these with .gz)",
        fix=f"Check the path (read from {Path.cwd()}), or list the folder's files.",
    )


def _unzip(content: bytes, path: Path) -> bytes:
    if path.suffix.lower() != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            where=str(path), given=f"damaged gzip data ({error})", expected="a whole gzip file", fix="Fetch it again."
        ) from error


# -- files: each reader yields (place, row number from 1, values) -----------------------------------------------------

_Placed = Iterator[tuple[str, int, Mapping[str, object]]]


def _read_json(data: bytes, path: str, report: Report) -> _Placed:
    """One object a line, or one array of objects: whichever the first character says, whatever the file's ending."""
    is_array = data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
    return _read_array(data, path, report) if is_array else _read_lines(data, path, report)


def _read_lines(data: bytes, path: str, report: Report) -> _Placed:
    start = number = 0
    pieces = data.split(b"\n")  # and nothing else: U+2028 and its like are legal inside JSON strings
    for line, piece in enumerate(pieces, start=1):
        place, offset = f"{path}:{line}", start
        start += len(piece) + 1
        if not piece.removeprefix(codecs.BOM_UTF8).strip():
            continue
        number += 1
        try:
            values = json.loads(_decode(piece, offset, place))
        except (ValueError, RecursionError) as error:
            is_cut = line == len(pieces)  # a whole file ends with a line break, so that its last piece is empty
            given = f"a last line that is cut off ({error})" if is_cut else f"invalid JSON ({error})"
            fix = "Fetch or write the file again: its end is missing." if is_cut else _FIX_ROW
            report(place, DataError(where=place, given=given, expected="one JSON object on the line", fix=fix))
        except DataError as error:
            report(place, error)
        else:
            if _is_mapping(values, place, report):
                yield place, number, values


def _read_array(data: bytes, path: str, report: Report) -> _Placed:
    text = _decode(data, 0, path)
    decoder, blank = json.JSONDecoder(), re.compile(r"\s*")
    position, number, line = text.index("[") + 1, 0, 1
    counted = 0

    def skip_blank(position: int) -> int:
        found = blank.match(text, position)
        return found.end() if found else position

    while True:
        position = skip_blank(position)
        if number == 0 and text[position : position + 1] == "]":
            return
        line, counted = line + text.count("\n", counted, position), position
        place, number = f"{path}:{line}", number + 1
        try:
            values, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise _bad_array(place, f"invalid JSON ({error})") from error
        if _is_mapping(values, place, report):
            yield place, number, values
        position = skip_blank(position)
        if text[position : position + 1] != ",":
            break
        position += 1
    if text[position:].strip() != "]":
        raise _bad_array(place, f"{short(text[position:])} after row {number}")


def _bad_array(place: str, given: str) -> DataError:
    return DataError(where=place, given=given, expected="a JSON array of objects", fix="Correct or fetch the file.")


def _read_csv(data: bytes, path: str, report: Report, delimiter: str = ",") -> _Placed:
    lines = data.splitlines(keepends=True)
    starts = [0, *accumulate(len(line) for line in lines)]
    # Bytes that are not UTF-8 pass through the parser and are reported with the record that holds them.
    texts = (line.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape") for line in lines)
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    names: list[str] | None = None
    number = 0
    while True:
        first = reader.line_num
        place = f"{path}:{first + 1}"
        try:
            record = next(reader, None)
            if record is None:
                return
            if not any(cell.strip() for cell in record) and len(record) <= 1:
                continue
            _decode(b"".join(lines[first : reader.line_num]), starts[first], place)
            if names is None:
                names = _choice_names(record)
                if names is None:
                    names = _header(record, place)
                    continue
            if len(record) != len(names):
                raise _stray_fields(record, names, place)
        except (csv.Error, DataError) as error:
            fault = error if isinstance(error, DataError) else _bad_csv(place, error)
            if names is None:  # without its header nothing in the file has a meaning
                raise fault from error
            number += 1
            report(place, fault)
            continue
        number += 1
        yield place, number, dict(zip(names, record, strict=True))


def _read_tsv(data: bytes, path: str, report: Report) -> _Placed:
    return _read_csv(data, path, report, delimiter="\t")


def _choice_names(record: list[str]) -> list[str] | None:
    """Names for a file without a header, as MMLU's: question, two or more options, the letter of the right one."""
    letters = [chr(ord("A") + k) for k in range(min(len(record) - 2, 26))]
    has_no_header = len(letters) >= 2 and record[-1].strip() in letters
    return ["question", *letters, "answer"] if has_no_header else None


def _header(record: list[str], place: str) -> list[str]:
    names = [cell.strip() for cell in record]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            where=place, given=f"the column {repeated[0]!r} twice", expected="column names", fix="Rename one of them."
        )
    return names


def _stray_fields(record: list[str], names: list[str], place: str) -> DataError:
    return DataError(
        where=place,
        given=f"{len(record)} fields: {short(record)}",
        expected=f"{len(names)} fields ({', '.join(names)})",
        fix="Put text that holds the separator in double quotes, or load with on_bad_row='skip'.",
    )


def _bad_csv(place: str, error: csv.Error) -> DataError:
    return DataError(
        where=place,
        given=f"a record that cannot be parsed ({error})",
        expected='fields that are unquoted or wholly inside "…", with quotes inside them doubled',
        fix="Close or double the quotes, or load with on_bad_row='skip'.",
    )


def _read_parquet(data: bytes, path: str, report: Report) -> _Placed:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(pyarrow.BufferReader(data)).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(
            where=path, given=f"unreadable parquet ({error})", expected="a whole parquet file", fix="Fetch it again."
        ) from error
    for number, values in enumerate(rows, start=1):
        yield f"{path}, row {number}", number, values


_READERS: dict[str, Callable[[bytes, str, Report], _Placed]] = {
    ".jsonl": _read_json,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_parquet,
}


def _decode(piece: bytes, offset: int, place: str) -> str:
    """Text of a piece that begins at `offset` in the file; a byte-order mark in front of it is dropped."""
    try:
        return piece.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            where=place,
            given=f"byte 0x{piece[error.start]:02x} at byte offset {offset + error.start}",
            expected="UTF-8 text",
            fix="Save the file as UTF-8, or load with on_bad_row='skip' to leave such rows out.",
        ) from error


def _is_mapping(values: object, place: str, report: Report) -> bool:
    if isinstance(values, Mapping):
        return True
    given = f"{type(values).__name__} {short(values)}"
    report(place, DataError(where=place, given=given, expected="an object with named columns", fix=_FIX_ROW))
    return False


def short(value: object) -> str:
    """A value as error messages show it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


# -- objects and the hub ----------------------------------------------------------------------------------------------


def _open_rows(source: Iterable[Any], name: str | None) -> Opened:
    info = getattr(source, "info", None)  # where `datasets` keeps a data set's name and licence
    label = name or str(getattr(info, "dataset_name", None) or "rows")
    found = list(source)
    canonical = json.dumps([dict(row) if isinstance(row, Mapping) else row for row in found], default=str)

    def rows(report: Report) -> Iterator[RawRow]:
        for number, values in enumerate(found, start=1):
            place = f"{label}, row {number}"
            if _is_mapping(values, place, report):
                yield RawRow(place=place, label=label, number=number, values=values)

    return Opened(
        description=label,
        digest=hashlib.sha256(canonical.encode()).hexdigest(),
        licence=str(getattr(info, "license", None) or "") or None,
        rows=rows,
    )


def _pick_split(splits: Mapping[Any, Any], split: str) -> Iterable[Any]:
    if split in splits or (not split and len(splits) == 1):
        chosen: Iterable[Any] = splits[split] if split else next(iter(splits.values()))
        return chosen
    raise DataError(
        where="the split to load",
        given=repr(split) if split else "none named",
        expected=f"one of {', '.join(map(str, splits))}",
        fix="Pass split='…', or pass rows and not a mapping.",
    )


def _open_hub(hub_id: str, configuration: str | None, split: str, name: str | None) -> Opened:
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            where=f"the source {hub_id!r}",
            given="no file or folder of that name, and no `datasets` package to look it up on the hub",
            expected="a path, or the hub extra",
            fix="Check the path, or: pip install 'lydian[hub]'",
        ) from error
    try:
        loaded = datasets.load_dataset(hub_id, configuration, split=split or None)
    except Exception as error:  # the hub's failures have no common class: offline, absent, gated, no such split, …
        raise DataError(
            where=f"the source {hub_id!r}",
            given=f"no file of that name, and from the hub {type(error).__name__}: {error}",
            expected="a path, or a hub id (id:configuration where the data set has several) within reach",
            fix="Check the name and the connection; offline, load the data set's files by path.",
        ) from error
    picked = _pick_split(loaded, split) if isinstance(loaded, Mapping) else loaded
    opened = _open_rows(picked, name or hub_id.rsplit("/", 1)[-1])
    return Opened(
        description=f"{hub_id}:{configuration}" if configuration else hub_id,
        digest=opened.digest,
        licence=opened.licence,
        rows=opened.rows,
    )
