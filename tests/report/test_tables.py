"""The stage table and the comparison, formatted: expected text is written out by hand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lydian.errors import RunError
from lydian.evaluation.compare import Comparison
from lydian.evaluation.statistics import Estimate
from lydian.report.tables import comparison_lines, stage_columns, stage_lines, stage_markdown, stage_rows, stage_table
from tests.report.fake_run import summary

SUMMARY = {
    "num_problems": 600,
    "stages": [
        {
            "stage": "base",
            "accuracy": {"value": 0.2133, "low": 0.1825, "high": 0.2478, "num": 600},
            "format": {"value": 0.62, "low": 0.58, "high": 0.66, "num": 600},
            "mean_tokens": 31.23,
            "versus_previous": None,
        },
        {
            "stage": "sft_a",
            "accuracy": {"value": 0.18, "low": 0.15, "high": 0.21, "num": 590},
            "format": None,
            "mean_tokens": None,
            "versus_previous": {"value": -0.0333, "low": -0.07, "high": 0.0004, "p_value": 0.0421},
        },
        {"stage": "grpo", "accuracy": None, "versus_previous": None},
    ],
}


def test_lines_are_aligned_and_say_what_is_absent() -> None:
    """0.2133 is 21.3 %, −0.0333 is −3.3 points, 0.0004 rounds to 0.0; 590 of 600 is said in the cell."""
    assert stage_lines(SUMMARY).splitlines() == [
        "stage   accuracy (600 held-out)         format   mean tokens    vs. previous stage (paired)",
        "base    21.3 % [18.2, 24.8]             62 %     31.2           –",
        "sft_a   18.0 % [15.0, 21.0] (n = 590)   –        not recorded   −3.3 [−7.0, 0.0]  p = 0.042",
        "grpo    not recorded                    –        not recorded   not recorded",
    ]


def test_a_small_p_value_is_never_shown_as_zero() -> None:
    """0.000999 is below 0.001; 0.001 is not."""
    for p_value, shown in ((0.0, "p < 0.001"), (0.000999, "p < 0.001"), (0.001, "p = 0.001"), (1.0, "p = 1.000")):
        versus = {"value": 0.1, "low": 0.05, "high": 0.15, "p_value": p_value}
        stages = [SUMMARY["stages"][0], {**SUMMARY["stages"][1], "versus_previous": versus}]
        assert stage_rows({"num_problems": 600, "stages": stages})[1][-1] == f"+10.0 [+5.0, +15.0]  {shown}"


def test_markdown_holds_the_same_cells() -> None:
    lines = stage_markdown(summary()).splitlines()
    cells = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines[2:]]
    unescaped = [tuple(c.replace("\\_", "_").replace("&lt;", "<") for c in row) for row in cells]
    assert unescaped == stage_rows(summary())
    assert lines[1] == "| --- | --- | --- | --- | --- |"


@pytest.mark.parametrize("width", [80, 140])
def test_a_terminal_shows_every_number_whole(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(stage_table(summary()))
    text = console.export_text()
    for row in stage_rows(summary()):
        for cell in (*row[:-1], *row[-1].split("  ")):
            assert cell in text
    assert "…" not in text


def test_markup_in_a_stage_name_stays_text() -> None:
    console = Console(file=io.StringIO(), width=140, record=True)
    console.print(stage_table({"num_problems": 1, "stages": [{"stage": "[red]x[/red]"}]}))
    assert "[red]x[/red]" in console.export_text()


@pytest.mark.parametrize("empty", [{}, {"stages": []}])
def test_no_stages_is_an_error_that_says_so(empty: dict[str, object]) -> None:
    with pytest.raises(RunError, match="no stages"):
        stage_rows(empty)


def test_comparison_names_difference_test_and_problems() -> None:
    """Nine gained: eight are named. A problem count of one is singular."""
    estimate = Estimate(value=0.05, low=0.012, high=0.088, num=160, method="agresti-min")
    comparison = Comparison(
        name_a="sft",
        name_b="grpo",
        difference=estimate,
        p_value=0.0215,
        test="exact McNemar",
        gained=tuple(f"p{k}" for k in range(9)),
        lost=("p77",),
        left_out=("p99",),
        strata={"level": {2: Estimate(value=-0.1, low=-0.2, high=0.0, num=1, method="agresti-min")}},
    )
    assert comparison_lines(comparison).splitlines() == [
        "compared     sft → grpo, paired over 160 problems",
        "difference   +5.0 [+1.2, +8.8] points",
        "test         p = 0.021, exact McNemar",
        "gained       9 problems: p0, p1, p2, p3, p4, p5, p6, p7, …",
        "lost         1 problem: p77",
        "left out     1 problem: p99 (not judged in both)",
        "level 2      −10.0 [−20.0, 0.0] points, 1 problem",
    ]


def test_branches_say_where_they_started_and_scorers_what_they_score():
    """Two policies from sft, a reward model between them: the second is compared with sft, not with the row above it,
    which is judged on pairs; a side benchmark is compared with the base, and a scorer is not judged on it."""
    share = {"value": 0.25, "low": 0.2, "high": 0.3, "num": 600}
    gain = {"value": 0.07, "low": 0.03, "high": 0.1, "p_value": 0.0001, "num": 600}
    policy = {"accuracy": share, "format": None, "mean_tokens": 40.0, "versus_previous": gain}
    side = {"side": {"long": {"accuracy": share, "versus_base": gain}}}
    stages = [
        {**policy, "stage": "base", "start": None, "versus_previous": None, "side": {"long": {"accuracy": share}}},
        {**policy, **side, "stage": "sft", "start": "base"},
        {"stage": "reward", "start": "sft", "measured": {"kind": "reward_model", "accuracy": share | {"num": 80}}},
        {**policy, **side, "stage": "ppo", "start": "sft"},
    ]
    summary = {"num_problems": 600, "stages": stages}
    assert stage_columns(summary)[-2:] == ("long (vs. base)", "vs. the stage it started from (paired)")
    base, sft, reward, ppo = stage_rows(summary)
    assert base[-2:] == ("25.0 %", "–")
    assert sft[-2:] == ("25.0 % (+7.0 [+3.0, +10.0])", "+7.0 [+3.0, +10.0]  p < 0.001")
    assert reward == ("reward", "25.0 % [20.0, 30.0] of 80 pairs", "–", "–", "–", "–")
    assert ppo[-1] == "+7.0 [+3.0, +10.0]  p < 0.001  from sft"
    assert stage_columns({"num_problems": 600, "stages": stages[:2]})[-1] == "vs. previous stage (paired)"
