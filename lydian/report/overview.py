"""Many evaluations in one table: a row each, with what was measured; as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from lydian.errors import InputError
from lydian.evaluation.at_k import at_k
from lydian.evaluation.compare import Comparison, compare
from lydian.evaluation.records import EvalRecord, EvalReport
from lydian.evaluation.statistics import holm, require_k
from lydian.report.entries import Entry
from lydian.report.tables import (
    LABEL_FREE_NOTE,
    align,
    format_difference,
    format_estimate,
    format_p,
    format_share,
    markdown,
)
from lydian.verifiers.verifier import is_label_free

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
LABEL_FREE_SENTENCE = "Label-free: the verifier read no gold answer; such a share is agreement, not accuracy."
_MEASURED = (
    "benchmark",
    "num_samples",
    "label_free",
    "accuracy",
    "at_k",
    "mean_tokens",
    "outcomes",
    "length_strata",
    "versus_first",
)
AT_K_COLUMNS = ("pass@k", "pass^k", "maj@k")
"""Of the estimates from k of a problem's samples."""


def overview(entries: Sequence[Entry], ks: Sequence[int] = ()) -> list[dict[str, Any]]:
    """One JSON row an entry; each is compared, problem by problem, with the first entry of an equal specification.

    ks  of pass@k and its like; by default `default_ks` of each report's samples a problem; a report of fewer samples
        leaves a k out

    Where there are several comparisons, each has `p_holm` beside its `p_value`: adjusted over all of the table. What
    there is no number for is the text "not measured". Raises InputError if there are no entries, or no report has k
    samples a problem.
    """
    if not entries:
        raise InputError(
            where="overview", given="no evaluation", expected="at least one", fix="Name a run or a report."
        )
    most = max((entry.report.spec.num_samples for entry in entries if entry.report is not None), default=0)
    for k in ks:
        require_k("overview", k, most)
    rows = [_row(entry, _first_alike(entries, entry), ks) for entry in entries]
    compared = [row["versus_first"] for row in rows if row["versus_first"] != NOT_MEASURED]
    if len(compared) > 1:
        for versus, adjusted in zip(compared, holm([versus["p_value"] for versus in compared]), strict=True):
            versus["p_holm"] = adjusted
    return rows


def overview_cells(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The rows as formatted cells under COLUMNS."""
    return [_cells(row) for row in rows]


def at_k_table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Header and rows of the estimates from k samples: one an evaluation and k; empty where all have one sample."""
    table = [
        (row["evaluation"], k, *(NOT_MEASURED if e is None else format_estimate(e) for e in estimates.values()))
        for row in rows
        if row["at_k"] != NOT_MEASURED
        for k, estimates in row["at_k"].items()
    ]
    return [("evaluation", "k", *AT_K_COLUMNS), *table] if table else []


def at_k_lines(
    report: EvalReport, ks: Sequence[int] = (), scores: Mapping[tuple[str, int], float] | None = None
) -> list[str]:
    """One report's estimates from k samples as lines, `pass@k k=2 …`, with rm@k where there are scores."""
    return [
        f"{name:<8}k={k:<4}{NOT_MEASURED if estimate is None else format_estimate(asdict(estimate))}"
        for k, estimates in at_k(report, ks, scores).items()
        for name, estimate in estimates.items()
    ]


def overview_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as plain text of fixed width, and below it that of several samples and what the p-values mean."""
    tables = [align(table) for table in ([COLUMNS, *overview_cells(rows)], at_k_table(rows)) if table]
    return "\n\n".join([*tables, *overview_notes(rows)])


def overview_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The same in Markdown."""
    tables = [markdown(table) for table in ([COLUMNS, *overview_cells(rows)], at_k_table(rows)) if table]
    return "\n\n".join([*tables, *overview_notes(rows)])


def overview_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader of the table must know, a sentence each."""
    notes = []
    num = sum(row["versus_first"] != NOT_MEASURED and "p_holm" in row["versus_first"] for row in rows)
    if num:
        notes.append(f"Holm: p-values adjusted over the {num} comparisons of this table.")
    if any(row["label_free"] is True for row in rows):
        notes.append(LABEL_FREE_SENTENCE)
    return notes


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


def details_text(before: EvalReport, after: EvalReport, comparison: Comparison, ks: Sequence[int] = ()) -> str:
    """Outcome shares, length strata, estimates from k samples and flipped examples, for a terminal."""
    lines = []
    for report in (before, after):
        lines.append(f"{report.name}: outcomes {_outcomes({str(k): v for k, v in report.outcome_shares().items()})}")
        for part in length_strata(report):
            lines.append(
                f"  {part['from_tokens']}–{part['to_tokens']} tokens: {format_share(part['correct'])} correct, "
                f"{format_share(part['truncated'])} truncated, {part['num']} samples"
            )
        lines += [f"  {line}" for line in at_k_lines(report, ks)]
    for flip in flips(before, after, comparison):
        lines.append(f"{flip['kind']} {flip['id']}: {_short(flip['question'])}")
        lines.append(f"  before: …{_short(flip['before'])}  ({_short(flip['before_reason'])})")
        lines.append(f"  after:  …{_short(flip['after'])}  ({_short(flip['after_reason'])})")
    if is_label_free(before.spec.verifier):
        lines.append(LABEL_FREE_SENTENCE)
    return "\n".join(lines)


def _row(entry: Entry, first: Entry | None, ks: Sequence[int]) -> dict[str, Any]:
    report = entry.report
    row: dict[str, Any] = {"evaluation": entry.label, "command": entry.command or NOT_MEASURED}
    if report is None:
        return row | dict.fromkeys(_MEASURED, NOT_MEASURED)
    is_judged = report.num_failed < len(report.records)
    row |= {
        "benchmark": report.benchmark,
        "num_samples": report.spec.num_samples,
        "label_free": is_label_free(report.spec.verifier),
        "accuracy": asdict(report.accuracy()) if is_judged else NOT_MEASURED,
        "at_k": _at_k(report, ks) if is_judged else NOT_MEASURED,
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


def _at_k(report: EvalReport, ks: Sequence[int]) -> Any:
    """The estimates as JSON values; a k that this report has too few samples for is left out."""
    possible = [k for k in ks if k <= report.spec.num_samples]
    table = {} if ks and not possible else at_k(report, possible)
    rows = {
        str(k): {name: None if e is None else asdict(e) for name, e in estimates.items()}
        for k, estimates in table.items()
    }
    return rows or NOT_MEASURED


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
        shown("accuracy", format_estimate) + (LABEL_FREE_NOTE if row["label_free"] is True else ""),
        shown("mean_tokens", lambda value: f"{value:.1f}"),
        shown("outcomes", _outcomes),
        _against_first(versus) if is_compared else NOT_MEASURED,
        str(len(versus["gained"])) if is_compared else NOT_MEASURED,
        str(len(versus["lost"])) if is_compared else NOT_MEASURED,
        row["command"],
    )


def _against_first(versus: Mapping[str, Any]) -> str:
    adjusted = f", Holm {format_p(versus['p_holm'])}" if "p_holm" in versus else ""
    return f"{format_difference(versus)}  {format_p(versus['p_value'])}{adjusted}"


def _outcomes(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{outcome} {format_share(share)}" for outcome, share in shares.items() if share)


def _sample(report: EvalReport, problem_id: str, *, is_correct: bool) -> EvalRecord:
    return next(r for r in report.records if r.problem_id == problem_id and r.is_judged and r.is_correct is is_correct)


def _short(text: str, limit: int = 100) -> str:
    folded = " ".join(text.split())
    return folded if len(folded) <= limit else folded[-limit:]
