"""What was asked, kept whole beside a report, so that the same completions can be judged again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from lydian.data.problems import Message, Problem, problems_digest
from lydian.errors import LydianError
from lydian.evaluation.files import not_ours, parse_object, read_text


def problems_path(prefix: Path) -> Path:
    """Where a report's problems lie."""
    return prefix.with_name(f"{prefix.name}.problems.jsonl")


def problem_lines(problems: Iterable[Problem]) -> str:
    """One line of JSON a problem; metadata that JSON cannot hold (dates, …) become text."""
    return "".join(json.dumps(asdict(problem), default=str) + "\n" for problem in problems)


def read_problems(prefix: Path, digest: str) -> tuple[Problem, ...]:
    """The problems beside a report, or none where the report was written before they were kept.

    digest  `EvalSpec.problems` of the report

    Raises DataError for a damaged file, and for one that holds other problems.
    """
    path = problems_path(prefix)
    if not path.is_file():
        return ()
    problems = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        row = parse_object(line, where=f"{path}:{number}")
        try:
            problems.append(Problem(**row | {"messages": tuple(Message(**message) for message in row["messages"])}))
        except (KeyError, TypeError, LydianError) as error:
            raise not_ours(f"{path}:{number}", f"{type(error).__name__}: {error}") from error
    if problems_digest(problems) != digest:
        raise not_ours(str(path), "problems whose digest is not the spec's")
    return tuple(problems)
