"""A gate passes on proof, not on the absence of a finding."""

from __future__ import annotations

import pytest

from lydian.errors import InputError
from lydian.evaluation.gate import judge_rules, parse_rule


@pytest.mark.parametrize(
    ("text", "benchmark", "quantity", "bound"),
    [
        ("gsm8k: drop <= 1pt", "gsm8k", "drop", 0.01),
        (" my bench :gain>=.5 %", "my bench", "gain", 0.005),
        ("*: accuracy ≥ 40 points", "*", "accuracy", 0.4),
        ("a: truncated <= 5pp", "a", "truncated", 0.05),
    ],
)
def test_rules_are_read(text, benchmark, quantity, bound) -> None:
    rule = parse_rule(text)
    assert (rule.benchmark, rule.quantity) == (benchmark, quantity) and rule.bound == pytest.approx(bound)


@pytest.mark.parametrize(
    "text", ["drop <= 1pt", "a: drop >= 1pt", "a: drop <= 1", "a: fall <= 1pt", "a: drop <= -1pt", ""]
)
def test_what_is_no_rule_is_refused(text) -> None:
    with pytest.raises(InputError, match="gsm8k: drop <= 1pt"):
        parse_rule(text)


def judge(rule, report, baseline=None):
    (found,) = judge_rules([parse_rule(rule)], [report], [] if baseline is None else [baseline])
    return found


def test_no_change_on_few_problems_is_no_proof(make_report) -> None:
    """20 problems unchanged: about ±2/22 = ±9 points (Agresti and Min's interval); it rules out a drop of 10, not 1."""
    same = make_report(["c"] * 10 + ["w"] * 10)
    assert judge("echo: drop <= 10pt", same, same).passed
    assert not judge("echo: drop <= 1pt", same, same).passed


def test_a_drop_fails_and_a_gain_passes(make_report) -> None:
    """100 problems: 30 lost is far below −10 points, and the other way round far above +10."""
    good, bad = make_report(["c"] * 80 + ["w"] * 20), make_report(["c"] * 50 + ["w"] * 50)
    assert not judge("echo: drop <= 10pt", bad, good).passed
    assert judge("echo: drop <= 10pt", good, bad).passed and judge("echo: gain >= 10pt", good, bad).passed
    assert not judge("echo: gain >= 30pt", good, bad).passed


def test_what_was_not_measured_fails(make_report) -> None:
    report = make_report(["c"] * 50)
    assert "no baseline" in judge("echo: drop <= 50pt", report).reason
    assert "no report" in judge("other: accuracy >= 1pt", report, report).reason
    broken = make_report(["f"] * 25 + ["c"] * 25)
    left_out = judge("echo: drop <= 50pt", broken, report)
    assert not left_out.passed and "25 problems" in left_out.reason
    assert left_out.as_row()["measured"] == "not measured"
    assert not judge("echo: accuracy >= 1pt", make_report(["f"] * 5)).passed
    unjudged = judge("echo: accuracy >= 1pt", make_report(["f"] * 2 + ["c"] * 98))
    assert not unjudged.passed and "2 problems" in unjudged.reason
    assert judge("echo: accuracy >= 1pt", make_report(["f"] + ["c"] * 99)).passed  # 1 % is let through


def test_rules_on_one_report(make_report) -> None:
    """50 of 50 right: Wilson's lower bound is 50/(50 + 1.96²) = 92.9 %. 2 of 20 samples unparsed is 10 %."""
    report = make_report(["c"] * 50)
    assert judge("echo: accuracy >= 92pt", report).passed and not judge("echo: accuracy >= 94pt", report).passed
    unparsed = make_report(["u"] * 2 + ["c"] * 18)
    assert judge("echo: unparsed <= 10%", unparsed).passed and not judge("echo: unparsed <= 9%", unparsed).passed


def test_a_star_rule_judges_every_report_and_doubles_are_refused(make_report) -> None:
    report = make_report(["c"] * 5)
    assert len(judge_rules([parse_rule("*: failed <= 0%")], [report], [])) == 1
    with pytest.raises(InputError, match="two of 'echo'"):
        judge_rules([], [report, report], [])
