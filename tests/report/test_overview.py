"""The table of many evaluations: comparisons with the first alike, Holm's adjustment, lengths, and what was absent."""

from __future__ import annotations

from typing import Any

import pytest

from lydian.errors import InputError
from lydian.evaluation.statistics import holm
from lydian.report.entries import Entry
from lydian.report.overview import (
    NOT_MEASURED,
    at_k_table,
    details_text,
    length_strata,
    overview,
    overview_markdown,
    overview_text,
)
from tests.evaluation.conftest import make_report  # noqa: F401  a fixture


def entry(label: str, report: Any) -> Entry:
    return Entry(label=label, command=None, report=report)


@pytest.fixture
def benchmarks(make_report: Any) -> list[Entry]:  # noqa: F811
    """Two benchmarks before and after: of 8 problems 6 are gained on a; 7 gained and 1 lost on b."""
    before, after = make_report("wwwwwwcc"), make_report("cccccccc", name="new")
    other = {"problems": "d2"}
    return [
        entry("old/a", before),
        entry("old/b", make_report("wwwwwwwc", **other)),
        entry("new/a", after),
        entry("new/b", make_report("cccccccw", name="new", **other)),
        entry("new/c", None),
    ]


def test_p_values_of_several_benchmarks_are_holm_s(benchmarks: list[Entry]) -> None:
    """McNemar: 2/2⁶ = 0.03125 on a and 2·(1 + 8)/2⁸ = 0.0703 on b; Holm doubles the smaller and keeps the larger."""
    rows = overview(benchmarks)
    versus = {row["evaluation"]: row["versus_first"] for row in rows if row["versus_first"] != NOT_MEASURED}
    assert [versus[name]["first"] for name in ("new/a", "new/b")] == ["old/a", "old/b"]
    assert [versus[name]["p_value"] for name in ("new/a", "new/b")] == pytest.approx([0.03125, 0.0703125])
    assert [versus[name]["p_holm"] for name in ("new/a", "new/b")] == pytest.approx([0.0625, 0.0703125])
    assert holm([0.03125, 0.0703125]) == pytest.approx([0.0625, 0.0703125])
    text = overview_text(rows)
    assert "Holm p = 0.062" in text and "adjusted over the 2 comparisons" in text


def test_one_comparison_needs_no_adjustment(benchmarks: list[Entry]) -> None:
    rows = overview([benchmarks[0], benchmarks[2]])
    assert "p_holm" not in rows[1]["versus_first"] and "Holm" not in overview_markdown(rows)


def test_what_was_not_measured_says_so(benchmarks: list[Entry]) -> None:
    row = overview(benchmarks)[-1]
    assert {row[key] for key in ("command", "accuracy", "at_k", "mean_tokens", "versus_first")} == {NOT_MEASURED}


def test_lost_and_gained_are_named_with_their_replies(make_report: Any) -> None:  # noqa: F811
    versus = overview([entry("a", make_report("cwc")), entry("b", make_report("wcc"))])[1]["versus_first"]
    assert (versus["lost"], versus["gained"]) == (["p0"], ["p1"])
    assert [(flip["kind"], flip["id"]) for flip in versus["flips"]] == [("lost", "p0"), ("gained", "p1")]
    assert "right" in versus["flips"][0]["before"] and "bad" in versus["flips"][0]["after"]


def test_several_samples_give_a_second_table(make_report: Any) -> None:  # noqa: F811
    """p0 has 1 of 2 right, p1 both: pass^2 is 1/2 and pass@2 is 1; a report of one sample a problem has no row."""
    rows = overview([entry("many", make_report(["cw", "cc"])), entry("one", make_report("cw"))])
    header, row = at_k_table(rows)
    assert header == ("evaluation", "k", "pass@k", "pass^k", "maj@k")
    assert row[:2] == ("many", "2") and row[2].startswith("100.0 %") and row[3].startswith("50.0 %")
    assert "pass^k" in overview_text(rows) and "pass^k" in overview_markdown(rows)
    with pytest.raises(InputError, match="k = 3"):
        overview([entry("many", make_report(["cw", "cc"]))], [3])


def test_two_reports_in_words(make_report: Any) -> None:  # noqa: F811
    from lydian.evaluation.compare import compare

    before, after = make_report(["cw", "cc"]), make_report(["cc", "cc"], name="after")
    text = details_text(before, after, compare(before, after))
    assert "pass^k  k=2" in text and "base: outcomes correct 75.0 %" in text


def test_length_strata_keep_equal_lengths_together(make_report: Any) -> None:  # noqa: F811
    """Samples 0, 1, 2 have 10, 11, 12 tokens (tests/evaluation/conftest.py): three strata of two, one a length."""
    parts = length_strata(make_report(["cwc", "wwc"]))
    assert [(part["from_tokens"], part["to_tokens"], part["num"], part["correct"]) for part in parts] == [
        (10, 10, 2, 0.5),
        (11, 11, 2, 0.0),
        (12, 12, 2, 1.0),
    ]


def test_a_cell_is_never_read_as_markup(make_report: Any) -> None:  # noqa: F811
    assert "a\\|b" in overview_markdown(overview([entry("a|b", make_report("cw"))]))
