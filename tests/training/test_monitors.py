"""Monitors: what they count, by hand, and when they ring."""

from __future__ import annotations

import pytest

from lydian.data.trajectory import Finish
from lydian.data.verdict import Group, Outcome, Scored, Verdict
from lydian.training.monitors import alarms, monitor_metrics
from lydian.verifiers import make_verifier
from tests.training.toys import Letters, group, problem, trajectory, verdict


class Plain(Letters):
    """Completions whose text is what a script says, by their first letter."""

    def decode(self, tokens) -> str:
        texts = {"a": "#### 5", "b": "so #### 5, or #### 6", "c": "The answer is 7.", "d": "nothing"}
        return texts.get(super().decode(tokens)[:1], "")


def test_what_a_round_shows_by_hand():
    """Two groups. p: a right, b right; q: c wrong, d without an answer. Distinct extracted answers: 1 of 2, 1 of 2 → ½.
    Held out: only c's text states 7. One of four texts states two answers; one of four has none."""

    def member(question: str, reply: str, sample: int, score: float, outcome: Outcome, answer: str | None) -> Scored:
        judged = Verdict(score=score, outcome=outcome, extracted=answer, verifier="toy:1")
        return Scored(trajectory=trajectory(question, reply, sample=sample), verdict=judged)

    p = Group(
        problem=problem("p", "7", level=1),
        members=(
            member("p", "a", 0, 1.0, Outcome.CORRECT, "5"),
            member("p", "bb", 1, 1.0, Outcome.CORRECT, "5"),
        ),
    )
    q = Group(
        problem=problem("q", "7", level=2),
        members=(
            member("q", "ccc", 0, 0.0, Outcome.WRONG, "7"),
            member("q", "dddd", 1, 0.0, Outcome.UNPARSED, None),
        ),
    )
    found = monitor_metrics([p, q], Plain(), make_verifier("numeric"))
    assert found["several_answers"] == found["unparsed"] == 0.25
    assert found["distinct_answers"] == 0.5
    assert found["all_right_groups"] == found["all_wrong_groups"] == 0.5
    assert (found["all_wrong_level_1"], found["all_wrong_level_2"]) == (0.0, 1.0)
    assert (found["reward_short"], found["reward_long"]) == (1.0, 0.0)
    assert found["heldout_accuracy"] == 0.25
    assert "heldout_accuracy" not in monitor_metrics([p, q], Plain(), None)


def test_repetition_by_hand():
    """aaaaaa and the stop: 7 tokens, 4-grams aaaa aaaa aaaa aaa.: 4, of which 2 are new. abcdef: none repeats."""
    same, new = group("p", ("aaaaaa", 0.0)), group("q", ("abcdef", 0.0))
    assert monitor_metrics([same], Letters(), None)["repetition"] == 0.5
    assert monitor_metrics([new], Letters(), None)["repetition"] == 0.0


def test_cut_off_and_failed_completions_are_counted_as_what_they_are():
    members = (
        Scored(trajectory=trajectory("p", "a", finish=Finish.LENGTH), verdict=verdict(None)),
        Scored(trajectory=trajectory("p", "b", sample=1), verdict=verdict(1.0)),
    )
    found = monitor_metrics([Group(problem=problem("p"), members=members)], Letters(), None)
    assert found["unparsed"] == 0.0
    assert "reward_long" not in found  # one score has no halves


def course(**metrics: tuple[float, float]) -> list[dict[str, float]]:
    """Nine rounds in which each metric goes from its first value to its last in a straight line."""
    return [{name: a + (b - a) * k / 8 for name, (a, b) in metrics.items()} for k in range(9)]


HONEST = {
    "reward": (0.2, 0.8),
    "heldout_accuracy": (0.15, 0.6),
    "truncated": (0.4, 0.0),
    "unparsed": (0.5, 0.0),
    "several_answers": (0.0, 0.02),
    "repetition": (0.1, 0.1),
    "no_signal_groups": (0.3, 0.6),
    "all_right_groups": (0.0, 0.5),
    "entropy": (0.9, 0.3),
}


def test_an_honest_course_is_silent():
    assert alarms(course(**HONEST)) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("reward_without_gain", {"heldout_accuracy": (0.15, 0.15)}),
        ("reward_without_gain", {"heldout_accuracy": (0.3, 0.1)}),
        ("truncated", {"truncated": (0.1, 0.7)}),
        ("unparsed", {"unparsed": (0.0, 0.9)}),
        ("several_answers", {"several_answers": (0.0, 0.9)}),
        ("repetition", {"repetition": (0.1, 0.9)}),
        ("no_signal", {"no_signal_groups": (0.9, 1.0)}),
    ],
)
def test_each_fault_rings_by_name(name: str, change: dict[str, tuple[float, float]]):
    rung = alarms(course(**HONEST | change))
    assert [alarm.name for alarm in rung] == [name]
    assert rung[0].sentence.endswith(".")


def test_entropy_that_is_gone_rings():
    """From .9 to .05 nats: below a tenth of where it began."""
    history = [metrics | {"entropy": 0.9 if k < 3 else 0.05} for k, metrics in enumerate(course(**HONEST))]
    assert [alarm.name for alarm in alarms(history)] == ["entropy"]


def test_a_few_rounds_are_no_course():
    """Five rounds of the worst kind ring nothing; six do."""
    bad = course(**HONEST | {"unparsed": (0.0, 0.9)})
    assert alarms(bad[::2]) == []  # five of the nine
    assert alarms([*bad[:3], *bad[-3:]]) != []
