"""The stage table and the comparison of two evaluations, as text, Markdown and rich. One place formats each number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from lydian.errors import RunError

if TYPE_CHECKING:
    from lydian.evaluation.compare import Comparison

ABSENT = "not recorded"
NONE = "–"


def stage_columns(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """The header of the stage table; names the number of held-out problems."""
    num = summary.get("num_problems")
    accuracy = "accuracy" if num is None else f"accuracy ({num} held-out)"
    return ("stage", accuracy, "format", "mean tokens", "vs. previous stage (paired)")


def stage_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row of formatted cells a stage, in the order of `summary["stages"]`.

    Accuracy, its interval and format are per cent; differences are percentage points. A stage whose interval rests on
    another number of problems than the header says so in its cell.

    Raises RunError if `summary` has no stages.
    """
    stages = summary.get("stages")
    if not stages:
        raise RunError(
            where="summary.json, stages",
            given="no stages",
            expected="one entry a stage",
            fix="Let the run finish its first evaluation, or pass the summary of another run.",
        )
    num = summary.get("num_problems")
    return [_stage_row(stage, num=num, is_first=index == 0) for index, stage in enumerate(stages)]


def stage_table(summary: Mapping[str, Any]) -> Table:
    """The stage table for a terminal; a narrow one breaks headers and moves p-values, but shows every number whole.

    Raises RunError if `summary` has no stages.
    """
    rows = stage_rows(summary)
    differences = [row[-1].partition("  ") for row in rows]
    width = max(len(difference) for difference, _, _ in differences)
    # Padded to one width, a p-value that has no room goes to the next line whole.
    cells = [
        (*row[:-1], f"{difference:{width}}{gap}{p_value}".rstrip())
        for row, (difference, gap, p_value) in zip(rows, differences, strict=True)
    ]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, column in enumerate(stage_columns(summary)):
        widest = max(len(row[index]) for row in cells)
        table.add_column(Text(column), min_width=width if index == 4 else widest)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table


def stage_lines(summary: Mapping[str, Any]) -> str:
    """The stage table as plain text of fixed width. Raises RunError if `summary` has no stages."""
    return _align([stage_columns(summary), *stage_rows(summary)])


def stage_markdown(summary: Mapping[str, Any]) -> str:
    """The stage table in Markdown. Raises RunError if `summary` has no stages."""
    columns = stage_columns(summary)
    rows = [columns, ("---",) * len(columns), *(map(_escape_markdown, row) for row in stage_rows(summary))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def comparison_lines(comparison: Comparison) -> str:
    """A paired comparison as a few lines: difference with interval, test, problems gained and lost, strata."""
    difference = comparison.difference
    rows = [
        ("compared", f"{comparison.name_a} → {comparison.name_b}, paired over {_count_problems(difference.num)}"),
        ("difference", f"{format_difference(asdict(difference))} points"),
        ("test", f"{format_p(comparison.p_value)}, {comparison.test}"),
        ("gained", _name_some(comparison.gained)),
        ("lost", _name_some(comparison.lost)),
    ]
    if comparison.left_out:
        rows.append(("left out", f"{_name_some(comparison.left_out)} (not judged in both)"))
    for key, values in comparison.strata.items():
        for value, part in values.items():
            rows.append((f"{key} {value}", f"{format_difference(asdict(part))} points, {_count_problems(part.num)}"))
    return _align(rows)


def format_share(share: float | None, decimals: int = 1) -> str:
    """A share in [0, 1] as per cent: 0.213 → `21.3 %`; None or a value that is not finite → `not recorded`."""
    return ABSENT if share is None or not math.isfinite(share) else f"{100 * share:.{decimals}f} %"


def format_estimate(estimate: Mapping[str, Any] | None) -> str:
    """Value and interval in per cent: `21.3 % [18.2, 24.8]`."""
    if estimate is None or _is_missing(estimate["value"]):
        return ABSENT
    low, high = estimate["low"], estimate["high"]
    interval = "" if _is_missing(low) or _is_missing(high) else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{format_share(estimate['value'])}{interval}"


def format_difference(difference: Mapping[str, Any] | None) -> str:
    """Difference and interval in percentage points: `+9.1 [+6.0, +12.2]`."""
    if difference is None or _is_missing(difference["value"]):
        return ABSENT
    low, high = difference["low"], difference["high"]
    interval = "" if _is_missing(low) or _is_missing(high) else f" [{_points(low)}, {_points(high)}]"
    return f"{_points(difference['value'])}{interval}"


def format_p(p_value: float) -> str:
    """`p < 0.001`, `p = 0.042`: never `p = 0`."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"


def _stage_row(stage: Mapping[str, Any], *, num: int | None, is_first: bool) -> tuple[str, ...]:
    accuracy = stage.get("accuracy")
    judged = None if accuracy is None else accuracy.get("num")
    note = f" (n = {judged})" if judged is not None and judged != num else ""
    layout = stage.get("format")
    versus = stage.get("versus_previous")
    difference = NONE if versus is None and is_first else format_difference(versus)
    if versus is not None and not _is_missing(versus.get("p_value")):
        difference += f"  {format_p(versus['p_value'])}"
    mean_tokens = stage.get("mean_tokens")
    return (
        str(stage.get("stage", ABSENT)),
        format_estimate(accuracy) + note,
        NONE if layout is None else format_share(layout["value"], decimals=0),
        ABSENT if _is_missing(mean_tokens) else f"{mean_tokens:.1f}",
        difference,
    )


def _points(value: float) -> str:
    rounded = f"{100 * value:+.1f}"
    return "0.0" if float(rounded) == 0 else rounded.replace("-", "−")


def _name_some(ids: Sequence[str], limit: int = 8) -> str:
    named = ", ".join(ids[:limit]) + (", …" if len(ids) > limit else "")
    return f"{_count_problems(len(ids))}{': ' if ids else ''}{named}"


def _count_problems(num: int) -> str:
    return f"{num} problem{'' if num == 1 else 's'}"


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _escape_markdown(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("_", "\\_").replace("<", "&lt;")


def _is_missing(value: float | None) -> bool:
    return value is None or not math.isfinite(value)
