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
JUDGED = {"reward_model": "pairs", "process_reward_model": "steps", "classifier": "texts"}
"""What the accuracy of a stage that trains no policy counts, by the kind of what it trains."""
LABEL_FREE_NOTE = " (label-free)"
"""After a share that rests on no gold answer, and so is no accuracy."""


def stage_columns(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """The header of the stage table; names the number of held-out problems."""
    num = summary.get("num_problems")
    accuracy = "accuracy" if num is None else f"accuracy ({num} held-out)"
    stages = summary.get("stages", [])
    versus = "vs. previous stage (paired)" if not _branches(stages) else "vs. the stage it started from (paired)"
    return ("stage", accuracy, "format", "mean tokens", *(f"{name} (vs. base)" for name in _sides(stages)), versus)


def stage_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row of formatted cells a stage, in the order of `summary["stages"]`; a column for each side benchmark.

    A reward model's or classifier's row says what was measured of it in place of an accuracy. Accuracy, its interval
    and format are per cent; differences are percentage points. A stage whose interval rests on another number of
    problems than the header says so in its cell.

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
    sides, branches = _sides(stages), _branches(stages)
    return [
        _scorer_row(stage, len(sides))
        if "measured" in stage
        else _stage_row(stage, sides, num=num, is_first=index == 0, is_branch=stage.get("stage") in branches)
        for index, stage in enumerate(stages)
    ]


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
        table.add_column(Text(column), min_width=width if index == len(rows[0]) - 1 else widest)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    return table


def stage_lines(summary: Mapping[str, Any]) -> str:
    """The stage table as plain text of fixed width. Raises RunError if `summary` has no stages."""
    return align([stage_columns(summary), *stage_rows(summary)])


def stage_markdown(summary: Mapping[str, Any]) -> str:
    """The stage table in Markdown. Raises RunError if `summary` has no stages."""
    return markdown([stage_columns(summary), *stage_rows(summary)])


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
    return align(rows)


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


def _sides(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for stage in stages for name in stage.get("side", {})))


def _branches(stages: Sequence[Mapping[str, Any]]) -> set[str]:
    """The stages that did not start from the one before them."""
    before = [stage.get("stage") for stage in stages]
    return {s["stage"] for s, previous in zip(stages[1:], before, strict=False) if s.get("start", previous) != previous}


def _scorer_row(stage: Mapping[str, Any], num_sides: int) -> tuple[str, ...]:
    measured = stage["measured"]
    accuracy = measured.get("accuracy")
    judged = format_estimate(accuracy)
    if accuracy is not None:
        judged += f" of {accuracy['num']} {JUDGED.get(measured.get('kind', ''), 'items')}"
    return (str(stage.get("stage", ABSENT)), judged, *[NONE] * (num_sides + 3))


def _stage_row(
    stage: Mapping[str, Any], sides: Sequence[str], *, num: int | None, is_first: bool, is_branch: bool
) -> tuple[str, ...]:
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
        format_estimate(accuracy) + (LABEL_FREE_NOTE if stage.get("label_free") else "") + note,
        NONE if layout is None else format_share(layout["value"], decimals=0),
        ABSENT if _is_missing(mean_tokens) else f"{mean_tokens:.1f}",
        *(_side_cell(stage.get("side", {}).get(name)) for name in sides),
        difference + (f"  from {stage['start']}" if is_branch else ""),
    )


def _side_cell(side: Mapping[str, Any] | None) -> str:
    if side is None:
        return ABSENT
    versus = side.get("versus_base")
    return format_share(side["accuracy"]["value"]) + ("" if versus is None else f" ({format_difference(versus)})")


def _points(value: float) -> str:
    rounded = f"{100 * value:+.1f}"
    return "0.0" if float(rounded) == 0 else rounded.replace("-", "−")


def _name_some(ids: Sequence[str], limit: int = 8) -> str:
    named = ", ".join(ids[:limit]) + (", …" if len(ids) > limit else "")
    return f"{_count_problems(len(ids))}{': ' if ids else ''}{named}"


def _count_problems(num: int) -> str:
    return f"{num} problem{'' if num == 1 else 's'}"


def align(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as plain text of fixed width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a Markdown table; the first is the header, and no cell is read as markup."""
    header, *rest = ([_escape_markdown(cell) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rest])


def _escape_markdown(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("_", "\\_").replace("<", "&lt;")


def _is_missing(value: float | None) -> bool:
    return value is None or not math.isfinite(value)
