"""Many evaluations in one table: a row each, with what was measured; as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from lydian.errors import InputError
from lydian.evaluation.compare import Comparison, compare
from lydian.evaluation.records import EvalRecord, EvalReport
from lydian.report.tables import format_difference, format_estimate, format_p, format_share

NOT_MEASURED = "not measured"
COLUMNS = (
    "evaluation",
    "benchmark",
    "accuracy",
    "tokens",
    "outcomes",
    "against the first",
    "gained",
    "lost",
    "command",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One evaluation of the table.

    label    how it was named: RUN:STAGE, or a file
    command  what made it; None if that was not recorded
    report   what was measured; None if nothing was
    """

    label: str
    command: str | None
    report: EvalReport | None


def overview(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """One JSON row an entry; each is compared, problem by problem, with the first entry of an equal specification.

    What there is no number for is the text "not measured". Raises InputError if there are no entries.
    """
    if not entries:
        raise InputError(
            where="overview", given="no evaluation", expected="at least one", fix="Name a run or a report."
        )
    return [_row(entry, _first_alike(entries, entry)) for entry in entries]


def overview_cells(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The rows as formatted cells under COLUMNS."""
    return [_cells(row) for row in rows]


def overview_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as plain text of fixed width."""
    table = [COLUMNS, *overview_cells(rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in table)


def overview_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table in Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *overview_cells(rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def length_strata(report: EvalReport, num: int = 3) -> list[dict[str, Any]]:
    """Share correct and share truncated by length of the completion, in `num` parts of about equal size.

    Each {"from_tokens", "to_tokens", "num", "correct", "truncated"}; completions of one length stay in one part, and
    verdicts that FAILED are left out.
    """
    judged = sorted((r for r in report.records if r.is_judged), key=lambda r: r.num_tokens)
    bounds = [judged[len(judged) * i // num].num_tokens for i in range(1, num)] if judged else []
    parts: dict[int, list[EvalRecord]] = {}
    for record in judged:
        parts.setdefault(sum(record.num_tokens >= bound for bound in bounds), []).append(record)
    return [
        {
            "from_tokens": part[0].num_tokens,
            "to_tokens": part[-1].num_tokens,
            "num": len(part),
            "correct": fmean(r.is_correct for r in part),
            "truncated": fmean(r.outcome == "truncated" for r in part),
        }
        for _, part in sorted(parts.items())
    ]


def flips(before: EvalReport, after: EvalReport, comparison: Comparison, num: int = 3) -> list[dict[str, Any]]:
    """Up to `num` problems lost and `num` gained, each with its question and the two replies judged unlike."""
    found = []
    for kind, ids in (("lost", comparison.lost), ("gained", comparison.gained)):
        for problem_id in ids[:num]:
            old = _sample(before, problem_id, is_correct=kind == "lost")
            new = _sample(after, problem_id, is_correct=kind == "gained")
            found.append({
                "kind": kind, "id": problem_id, "question": new.question or old.question or NOT_MEASURED,
                "before": old.text, "after": new.text, "before_reason": old.reason, "after_reason": new.reason,
            })  # fmt: skip
    return found


def details_text(before: EvalReport, after: EvalReport, comparison: Comparison) -> str:
    """Outcome shares, length strata and flipped examples of two evaluations, for a terminal."""
    lines = []
    for report in (before, after):
        lines.append(f"{report.name}: outcomes {_outcomes({str(k): v for k, v in report.outcome_shares().items()})}")
        for part in length_strata(report):
            lines.append(
                f"  {part['from_tokens']}–{part['to_tokens']} tokens: {format_share(part['correct'])} correct, "
                f"{format_share(part['truncated'])} truncated, {part['num']} samples"
            )
    for flip in flips(before, after, comparison):
        lines.append(f"{flip['kind']} {flip['id']}: {_short(flip['question'])}")
        lines.append(f"  before: …{_short(flip['before'])}  ({_short(flip['before_reason'])})")
        lines.append(f"  after:  …{_short(flip['after'])}  ({_short(flip['after_reason'])})")
    return "\n".join(lines)


def _row(entry: Entry, first: Entry | None) -> dict[str, Any]:
    report = entry.report
    row: dict[str, Any] = {"evaluation": entry.label, "command": entry.command or NOT_MEASURED}
    if report is None:
        keys = ("benchmark", "num_samples", "accuracy", "mean_tokens", "outcomes", "length_strata", "versus_first")
        return row | dict.fromkeys(keys, NOT_MEASURED)
    is_judged = report.num_failed < len(report.records)
    row |= {
        "benchmark": report.benchmark,
        "num_samples": report.spec.num_samples,
        "accuracy": asdict(report.accuracy()) if is_judged else NOT_MEASURED,
        "mean_tokens": report.mean_tokens(),
        "outcomes": {str(outcome): share for outcome, share in report.outcome_shares().items()},
        "length_strata": length_strata(report),
        "versus_first": NOT_MEASURED,
    }
    if first is not None and first.report is not None and first is not entry and is_judged:
        change = compare(first.report, report)
        row["versus_first"] = asdict(change.difference) | {
            "first": first.label,
            "p_value": change.p_value,
            "test": change.test,
            "gained": list(change.gained),
            "lost": list(change.lost),
            "left_out": list(change.left_out),
            "flips": flips(first.report, report, change),
        }
    return row


def _first_alike(entries: Sequence[Entry], entry: Entry) -> Entry | None:
    if entry.report is None:
        return None
    digest = entry.report.spec.digest
    return next(
        e
        for e in entries
        if e is entry
        or (e.report is not None and e.report.spec.digest == digest and e.report.num_failed < len(e.report.records))
    )


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    def shown(key: str, show: Any) -> str:
        return NOT_MEASURED if row[key] == NOT_MEASURED else str(show(row[key]))

    versus = row["versus_first"]
    is_compared = versus != NOT_MEASURED
    return (
        row["evaluation"],
        row["benchmark"],
        shown("accuracy", format_estimate),
        shown("mean_tokens", lambda value: f"{value:.1f}"),
        shown("outcomes", _outcomes),
        f"{format_difference(versus)}  {format_p(versus['p_value'])}" if is_compared else NOT_MEASURED,
        str(len(versus["gained"])) if is_compared else NOT_MEASURED,
        str(len(versus["lost"])) if is_compared else NOT_MEASURED,
        row["command"],
    )


def _outcomes(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{outcome} {format_share(share)}" for outcome, share in shares.items() if share)


def _sample(report: EvalReport, problem_id: str, *, is_correct: bool) -> EvalRecord:
    return next(r for r in report.records if r.problem_id == problem_id and r.is_judged and r.is_correct is is_correct)


def _short(text: str, limit: int = 100) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= limit else folded[-limit:]
