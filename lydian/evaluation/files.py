"""The files of a report: their names, reading them, and the error for a file that `EvalReport.save` did not write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lydian.errors import DataError


def part_path(prefix: Path, part: str) -> Path:
    """Where a part of a report lies: `problems`, `generations` or `records`, a line each, or its head ("").

    >>> part_path(Path("qwen2.5"), "records").name, part_path(Path("qwen2.5"), "").name
    ('qwen2.5.records.jsonl', 'qwen2.5.json')
    """
    # Not `with_suffix`: a name may have a dot of its own.
    return prefix.with_name(f"{prefix.name}.{part}.jsonl" if part else f"{prefix.name}.json")


def read_text(path: Path) -> str:
    """The file's text. Raises DataError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise not_ours(str(path), f"{type(error).__name__}: {error}") from error


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
