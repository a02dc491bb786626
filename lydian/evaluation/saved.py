"""A report as files. What was asked, what was generated, and the verdicts lie apart: others can judge it again.

PREFIX.problems.jsonl     what was asked, whole
PREFIX.generations.jsonl  a completion a line, whoever judges it
PREFIX.records.jsonl      a verdict a line, in the same order
PREFIX.json               the head: spec, weights, estimates, digests of the other files
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lydian.data.atomic import write_atomically
from lydian.data.problems import Message, Problem, problems_digest
from lydian.errors import LydianError
from lydian.evaluation.files import not_ours, parse_object, part_path, read_text
from lydian.evaluation.records import EvalRecord, EvalReport, EvalSpec

GENERATED = ("text", "num_tokens", "finish")
"""Fields of a record that the model made; the others, but for the problem and the sample, are the verdict."""


def save(report: EvalReport, prefix: Path, *, generations: Path | None) -> None:
    """Writes a report's files; with `generations`, the completions stay in that report's file and are only named."""
    rows = [asdict(record) for record in report.records]
    lines = "".join(_line({key: value for key, value in row.items() if key not in GENERATED}) for row in rows)
    own = part_path(prefix, "generations")
    stored = own if generations is None else part_path(generations, "generations")
    stored = stored if stored.is_file() else own  # reports saved before generations had a file of their own
    head = {
        "name": report.name,
        "benchmark": report.benchmark,
        "weights": {"version": report.weights_version, "digest": report.weights_digest},
        "spec": asdict(report.spec),
        "spec_digest": report.spec.digest,
        "estimates": report.estimates(),
        "records_digest": hashlib.sha256(lines.encode()).hexdigest(),
        "generations": os.path.relpath(stored, prefix.parent),
        "generations_digest": report.generations_digest,
    } | ({} if report.rescored_from is None else {"rescored_from": report.rescored_from})
    if report.problems:
        write_atomically(part_path(prefix, "problems"), _problem_lines(report.problems))
    if stored == own:
        kept = ("problem_id", "sample", *GENERATED)
        write_atomically(own, "".join(_line({key: row[key] for key in kept}) for row in rows))
    write_atomically(part_path(prefix, "records"), lines)
    write_atomically(part_path(prefix, ""), json.dumps(head, indent=2, allow_nan=False) + "\n")


def load(prefix: Path) -> EvalReport:
    """Reads what `save` wrote. Raises DataError at the first line that is no record, or if the files disagree."""
    head_path, records_path = part_path(prefix, ""), part_path(prefix, "records")
    content, head = read_text(records_path), parse_object(read_text(head_path), where=str(head_path))
    try:
        spec = EvalSpec.from_row(head["spec"])
        weights, digest = head["weights"], head["records_digest"]
        rest = {"benchmark": head["benchmark"], "name": head["name"]}
        rest |= {"weights_version": weights["version"], "weights_digest": weights["digest"]}
    except (KeyError, TypeError) as error:
        raise not_ours(str(head_path), f"{type(error).__name__}: {error}") from error
    lines = content.splitlines()
    # Reports written before generations had a file of their own hold them in their records.
    generated = _rows(prefix.parent / head["generations"]) if "generations" in head else [{}] * len(lines)
    if len(generated) != len(lines):
        raise not_ours(str(records_path), f"{len(lines)} verdicts on {len(generated)} completions")
    records = tuple(
        EvalRecord.from_row(_joined(line, row, f"{records_path}:{number}"), where=f"{records_path}:{number}")
        for number, (line, row) in enumerate(zip(lines, generated, strict=True), start=1)
    )
    if digest != hashlib.sha256(content.encode()).hexdigest():
        raise not_ours(str(head_path), f"a records_digest that {records_path.name} does not have")
    problems = _read_problems(prefix, spec.problems)
    report = EvalReport(spec=spec, records=records, problems=problems, rescored_from=head.get("rescored_from"), **rest)
    if head.get("generations_digest", report.generations_digest) != report.generations_digest:
        raise not_ours(str(head_path), "a generations_digest that its completions do not have")
    return report


def _joined(line: str, generated: dict[str, Any], where: str) -> dict[str, Any]:
    verdict = parse_object(line, where=where)
    if not generated:
        return verdict
    if any(verdict.get(key, generated[key]) != generated[key] for key in ("problem_id", "sample")):
        raise not_ours(where, f"a verdict on another completion than {generated['problem_id']!r}")
    return verdict | {key: generated[key] for key in GENERATED}


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        row = parse_object(line, where=f"{path}:{number}")
        if set(row) != {"problem_id", "sample", *GENERATED}:
            raise not_ours(f"{path}:{number}", f"the fields {sorted(row)}")
        rows.append(row)
    return rows


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _problem_lines(problems: Iterable[Problem]) -> str:
    """One line of JSON a problem; metadata that JSON cannot hold (dates, …) become text."""
    return "".join(json.dumps(asdict(problem), default=str) + "\n" for problem in problems)


def _read_problems(prefix: Path, digest: str) -> tuple[Problem, ...]:
    """The problems beside a report, or none where the report was written before they were kept."""
    path = part_path(prefix, "problems")
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
