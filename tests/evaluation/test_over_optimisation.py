"""The course of a stage, from lines of metrics written by hand."""

from __future__ import annotations

import json

import pytest

from lydian.errors import InputError
from lydian.evaluation.over_optimisation import course_lines, course_of


def lines(proxy, gold=None, kl=None, stage="ppo"):
    """One line a round; kl in nats a token, at 10 tokens a completion."""
    found = []
    for number, reward in enumerate(proxy):
        metrics = {"reward": reward, "mean_tokens": 10.0}
        metrics |= {} if gold is None else {"heldout_accuracy": gold[number]}
        metrics |= {} if kl is None else {"kl_reference": kl[number]}
        found.append({"stage": stage, "round": number, "metrics": metrics})
    return found


RISING = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
FALLING = [0.5, 0.6, 0.7, 0.5, 0.4, 0.3]


def test_a_proxy_that_rises_while_gold_falls_is_over_optimised():
    """First third 0, 1 and last 4, 5: +4. Gold 0.5, 0.6 against 0.4, 0.3: −0.2; from the best, 0.7, down 0.4."""
    course = course_of("ppo", lines(RISING, FALLING, [0.01 * k for k in range(6)]))
    assert course.is_over_optimised is True
    assert course.proxy_change == 4.0
    assert course.gold_change == pytest.approx(-0.2)
    assert (course.best.round, course.loss_from_best) == (2, pytest.approx(0.4))
    assert [found.kl for found in course.rounds] == pytest.approx([0.1 * k for k in range(6)])


def test_both_rising_is_not():
    assert course_of("ppo", lines(RISING, [g / 10 for g in RISING])).is_over_optimised is False


@pytest.mark.parametrize("metrics", [lines(RISING), lines(RISING[:5], FALLING[:5])])
def test_without_gold_or_with_few_rounds_nothing_is_said(metrics):
    course = course_of("ppo", metrics)
    assert course.is_over_optimised is None
    assert "not known" in course_lines(course)[-1]


def test_a_rounds_first_step_counts_and_other_stages_do_not():
    metrics = lines([1.0]) + lines([2.0]) + lines([3.0], stage="sft")
    assert [found.proxy for found in course_of("ppo", metrics).rounds] == [1.0]
    with pytest.raises(InputError, match="no round"):
        course_of("dpo", metrics)


def test_lines_and_json():
    course = course_of("ppo", lines(RISING, FALLING))
    text = course_lines(course)
    assert len(text) == 1 + 6 + 1
    assert "not measured" in text[1] and "50.0%" in text[1]
    assert text[-1].startswith("over-optimised: proxy +4, gold -20.0%") and "round 2 at 70.0%, then -40.0%" in text[-1]
    assert json.loads(json.dumps(course.as_row()))["is_over_optimised"] is True
