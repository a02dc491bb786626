"""Pairs by rule: values by hand on four replies, and by enumeration on many small groups."""

from __future__ import annotations

import itertools
import random

import pytest

from lydian.data.pair_rules import Candidate, PairRules, choose_pairs, pair_metrics
from lydian.errors import InputError


def candidates(*rows: tuple[float | None, int]) -> list[Candidate]:
    """Of (score, length); 1 is right, all else wrong. No two are the same."""
    return [
        Candidate(score=score, length=length, is_correct=score == 1, content=place)
        for place, (score, length) in enumerate(rows)
    ]


FOUR = candidates((1.0, 40), (0.0, 12), (1.0, 15), (0.0, 44))


def test_best_against_worst_takes_the_earlier_of_equals_and_each_reply_once():
    """All differences are 1: in the order of the samples, 0 over 1, then 2 over 3."""
    assert choose_pairs(FOUR, PairRules()).pairs == ((0, 1),)
    choice = choose_pairs(FOUR, PairRules(most=9))
    assert choice.pairs == ((0, 1), (2, 3))
    assert choice.length_differences == (28, -29)


def test_length_matched_takes_the_smallest_difference_in_length():
    """|length| differences: 0 over 1 28, 0 over 3 4, 2 over 1 3, 2 over 3 29."""
    choice = choose_pairs(FOUR, PairRules(rule="length_matched", most=2))
    assert choice.pairs == ((2, 1), (0, 3))
    assert choice.length_differences == (3, -4)


def test_pairs_below_the_margin_are_none():
    """1 − 0.25 = 0.75 and 1 − 0.5 = 0.5; the margin is a least difference, so one of exactly 0.75 counts."""
    graded = candidates((1.0, 5), (0.5, 5), (0.25, 5))
    assert choose_pairs(graded, PairRules(margin=0.75, most=2)).pairs == ((0, 2),)
    assert choose_pairs(graded, PairRules(margin=0.76)).dropped == "no_margin"
    assert choose_pairs(graded, PairRules(rule="length_matched")).pairs == ((0, 2),)  # equal lengths: the best first


def test_groups_without_a_difference_are_dropped_by_reason():
    assert choose_pairs(candidates((1.0, 5), (1.0, 9)), PairRules()).dropped == "all_right"
    assert choose_pairs(candidates((0.0, 5), (0.0, 9)), PairRules()).dropped == "all_wrong"
    assert choose_pairs(candidates((1.0, 5)), PairRules()).dropped == "too_few"
    assert choose_pairs([], PairRules()).dropped == "too_few"
    assert choose_pairs(FOUR, PairRules()).dropped is None


def test_a_wrong_reply_is_chosen_only_where_that_is_asked_for():
    """Two wrong replies of different merit: a group that is all wrong, unless scores alone count."""
    graded = candidates((0.25, 5), (0.75, 9))
    assert choose_pairs(graded, PairRules()).dropped == "all_wrong"
    assert choose_pairs(graded, PairRules(wrong_chosen=True)).pairs == ((1, 0),)


def test_failed_judgements_are_never_in_a_pair():
    """With its failed member a group of one right reply has nobody to be compared with."""
    assert choose_pairs(candidates((1.0, 5), (None, 9)), PairRules(wrong_chosen=True)).dropped == "too_few"
    assert choose_pairs(candidates((None, 5), (1.0, 9), (0.0, 3)), PairRules(most=3)).pairs == ((1, 2),)


def test_copies_count_once_the_first_of_them():
    rows = [(1.0, "x"), (0.0, "y"), (1.0, "x"), (0.0, "y"), (0.0, "z")]
    judged = [Candidate(score=s, length=1, is_correct=s == 1, content=c) for s, c in rows]
    choice = choose_pairs(judged, PairRules(most=3))
    assert choice.pairs == ((0, 1),)
    assert choice.num_copies == 2


@pytest.mark.parametrize("rule", ["best_against_worst", "length_matched"])
def test_each_pair_is_the_best_of_what_is_left(rule: str):
    """Against enumeration on 200 random groups of six: of all pairs of replies not yet used that the rules allow, the
    one with the largest difference in score, or the smallest in length; and none is left out while there is room."""
    rng = random.Random(0)
    for _ in range(200):
        rows = [(rng.choice([None, 0.0, 0.25, 0.5, 1.0]), rng.randint(1, 9)) for _ in range(6)]
        judged, margin, most = candidates(*rows), rng.choice([0.0, 0.5]), rng.randint(1, 4)
        pairs = choose_pairs(judged, PairRules(rule=rule, margin=margin, most=most)).pairs

        def cost(pair: tuple[int, int], rows=rows) -> tuple[float, float]:
            (better, long), (worse, short) = rows[pair[0]], rows[pair[1]]
            gap = better - worse
            return (-gap, 0) if rule == "best_against_worst" else (abs(long - short), -gap)

        left = {
            (i, j)
            for i, j in itertools.permutations(range(6), 2)
            if rows[i][0] == 1 and rows[j][0] is not None and rows[i][0] - rows[j][0] >= max(margin, 1e-9)
        }
        for pair in pairs:
            assert pair in left and cost(pair) == min(map(cost, left))
            left = {other for other in left if not set(other) & set(pair)}
        assert len(pairs) == most or not left


def test_metrics_are_counts_and_means_over_pairs():
    """Differences in length of 28, −29, 0 and reasons all_right, too_few: mean −1/3, longer 1.5 of 3 (a tie counts
    half), one copy."""
    groups = [
        FOUR,
        candidates((1.0, 7), (0.0, 7)),
        candidates((1.0, 5), (1.0, 9)),
        [FOUR[0], FOUR[0]],
    ]
    metrics = pair_metrics([choose_pairs(group, PairRules(most=2)) for group in groups])
    assert metrics == {
        "pairs": 3.0,
        "copies": 1.0,
        "dropped_all_right": 1.0,
        "dropped_too_few": 1.0,
        "pair_length_difference": pytest.approx(-1 / 3),
        "chosen_longer": 0.5,
    }
    assert pair_metrics([]) == {"pairs": 0.0, "copies": 0.0}


@pytest.mark.parametrize("wrong", [{"rule": "worst"}, {"margin": -0.1}, {"most": 0}])
def test_rules_out_of_range_are_refused_by_name(wrong: dict):
    with pytest.raises(InputError, match=next(iter(wrong))):
        PairRules(**wrong)
