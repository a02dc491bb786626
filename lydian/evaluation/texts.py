"""Training texts as a stream: rows of files of any size, one at a time, each as the strings that it holds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from lydian.data.sources import open_source
from lydian.errors import DataError, LydianError


def stream_texts(paths: Iterable[str | Path]) -> Iterator[tuple[str, list[str]]]:
    """(place, texts) for each row of the files, in order.

    .jsonl and .txt, also .gz, are read line by line in constant memory; .json, .csv, .tsv, .parquet and hub ids as the
    loaders read them. A row's texts are all strings within it, however deep; a line of a .txt file is one text.

    Raises DataError for an absent file and at the first row that cannot be read, naming file and line.
    """
    for path in map(str, paths):
        plain = path.removesuffix(".gz")
        if plain.endswith((".jsonl", ".txt")):
            yield from _lines(Path(path), is_json=plain.endswith(".jsonl"))
        else:
            for row in open_source(path, split="", name=None).rows(_stop):
                yield row.place, list(strings_in(row.values))


def strings_in(value: object) -> Iterator[str]:
    """All strings within a JSON value, in order; names of fields are left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_in(item)


def _lines(path: Path, *, is_json: bool) -> Iterator[tuple[str, list[str]]]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    text = line.decode()
                    yield f"{path}:{number}", list(strings_in(json.loads(text))) if is_json else [text]
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            where=f"{path}:{number}",
            given=f"{type(error).__name__}: {error}",
            expected="UTF-8 text" + (", a JSON value a line" if is_json else ""),
            fix="Check the path; correct or remove the line.",
        ) from error


def _stop(_: str, error: LydianError) -> None:
    raise error
