"""The files of a report: their names, whole writes, and the error for a file that `EvalReport.save` did not write."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lydian.errors import DataError


def report_paths(prefix: Path) -> tuple[Path, Path]:
    """Where a report's records and its head lie."""
    # Not `with_suffix`: a name such as qwen2.5 has a dot of its own.
    return prefix.with_name(f"{prefix.name}.records.jsonl"), prefix.with_name(f"{prefix.name}.json")


def read_text(path: Path) -> str:
    """The file's text. Raises DataError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise not_ours(str(path), f"{type(error).__name__}: {error}") from error


def write_atomically(path: Path, text: str) -> None:
    """The file is replaced whole or stays as it was, also if the machine stops here."""
    draft = path.with_name(f"{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    with draft.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def parse_object(text: str | bytes, *, where: str) -> dict[str, Any]:
    """A JSON object. Raises DataError, naming `where`, for anything else."""
    try:
        row = json.loads(text)
    except ValueError as error:  # broken JSON, or bytes that are not UTF-8
        raise not_ours(where, f"{error} in {text[:60]!r}") from error
    if not isinstance(row, dict):
        raise not_ours(where, f"a JSON {type(row).__name__}")
    return row


def not_ours(where: str, given: str) -> DataError:
    """The error for a file that is not what was written."""
    return DataError(
        where=where,
        given=given,
        expected="what EvalReport.save writes",
        fix="If the path is right, the file was cut short or edited: restore it, or evaluate again.",
    )
