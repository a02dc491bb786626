"""Pairs, feedback and best replies from judged ones: hand-made groups of which every pair can be said beforehand."""

from __future__ import annotations

import itertools
import math

import pytest

from lydian.data.judged import JudgedReply
from lydian.data.pair_rules import PairRules
from lydian.data.pairs import build_best, build_feedback, build_pairs, length_difference, sign_test, similarity
from lydian.data.problems import Message
from lydian.errors import InputError


def replies(question, *judged, **more):
    """One reply for each (text, score, label or None)."""
    ask = (Message(role="user", content=question),)
    return [
        JudgedReply(
            id=f"{question}/{k}",
            messages=ask,
            reply=text,
            score=score,
            labels=() if label is None else (bool(label),),
            **more,
        )
        for k, (text, score, label) in enumerate(judged)
    ]


def chosen_and_rejected(built):
    return [(item.chosen, item.rejected) for item in built.items]


MIXED = replies("m", ("good but long words", 1.0, 1), ("bad", 0.0, 0), ("fine", 0.8, 1), ("worse one", -0.5, 0))
RIGHT = replies("r", ("one", 1.0, 1), ("two", 1.0, 1))
WRONG = replies("w", ("three", 0.0, 0), ("four", 0.2, 0))


def test_best_against_worst():
    assert chosen_and_rejected(build_pairs(MIXED)) == [("good but long words", "worse one")]
    two = chosen_and_rejected(build_pairs(MIXED, PairRules(most=2)))
    assert two == [("good but long words", "worse one"), ("fine", "bad")]
    assert chosen_and_rejected(build_pairs(MIXED, PairRules(most=9))) == two  # each reply once


def test_length_matched():
    """Words: 4 and 1 right, 1 and 2 wrong. Equal lengths first (fine, bad), then what is left."""
    rules = PairRules(rule="length_matched", most=2)
    assert chosen_and_rejected(build_pairs(MIXED, rules)) == [("fine", "bad"), ("good but long words", "worse one")]


def test_a_margin():
    assert chosen_and_rejected(build_pairs(MIXED, PairRules(margin=1.2, most=2))) == [
        ("good but long words", "worse one")
    ]
    built = build_pairs(MIXED, PairRules(margin=1.6))
    assert built.items == () and built.report.dropped == {"no_margin": 1} and built.report.length is None


def test_groups_of_one_kind_make_no_pair_and_are_counted():
    alone = replies("a", ("only", 1.0, 1))
    built = build_pairs([*RIGHT, *MIXED, *WRONG, *alone])
    assert [item.messages[0].content for item in built.items] == ["m"]
    assert built.report.dropped == {"all_right": 1, "all_wrong": 1, "too_few": 1}
    assert (built.report.num_replies, built.report.num_groups, built.report.num_items) == (9, 4, 1)


def test_scores_alone():
    """Where nobody says what is right, the better score is chosen; equal scores make no pair, for want of a margin."""
    scored = replies("s", ("a", 0.1, None), ("b", 0.9, None), ("c", 0.5, None))
    equal = replies("e", ("a", 0.5, None), ("b", 0.5, None))
    built = build_pairs([*scored, *equal])
    assert chosen_and_rejected(built) == [("b", "a")]
    assert built.report.dropped == {"no_margin": 1}


def test_near_identical_pairs_are_dropped():
    """Nine of ten words agree, in one block of the first nine: similarity 0.9."""
    near = replies("n", ("1 2 3 4 5 6 7 8 9 yes", 1.0, 1), ("1 2 3 4 5 6 7 8 9 no", 0.0, 0))
    assert similarity(*near) == pytest.approx(0.9)
    assert len(build_pairs(near).items) == 1
    built = build_pairs(near, max_similarity=0.9)
    assert built.items == () and built.report.num_near_identical == 1
    assert built.report.dropped == {"near_identical": 1}
    assert len(build_pairs(near, max_similarity=1.01).items) == 1
    with pytest.raises(InputError, match="max_similarity: got 0"):
        build_pairs(near, max_similarity=0)


def test_words_that_agree_out_of_order_are_not_alike():
    """Common words: a b c d; the longest common block is "a b" or "c d": 2 · 2 / 8."""
    one, other = replies("o", ("a b c d", 1.0, 1), ("c d a b", 0.0, 0))
    assert similarity(one, other) == pytest.approx(0.5)


def test_copies_are_one_reply():
    copies = replies("c", ("right", 1.0, 1), ("right ", 1.0, 1), ("wrong", 0.0, 0), (" wrong", 0.0, 0))
    built = build_pairs(copies, PairRules(most=4))
    assert len(built.items) == 1 and built.report.left_out == {"repeated": 2}


def test_a_pair_says_where_it_comes_from():
    one, other = replies("q", ("a", 1.0, 1), ("b", 0.0, 0), judge="numeric:1", split="train")
    facts = [({"level": 3, "draw": 0}, one), ({"level": 3, "draw": 1}, other)]
    judged = [
        JudgedReply(**{f: getattr(reply, f) for f in JudgedReply.__slots__} | {"metadata": data})
        for data, reply in facts
    ]
    (item,) = build_pairs(judged).items
    assert (item.id, item.split) == ("q/0>q/1", "train")
    assert item.metadata == {"level": 3, "scores": [1.0, 0.0], "judge": "numeric:1"}
    assert build_pairs(judged).report.judges == {"numeric:1": 1}


def test_nothing_depends_on_chance_or_on_other_prompts():
    """Equal input, equal output; prompts in another order give the same pairs in that order."""
    together = [*MIXED, *replies("n", ("x", 1.0, 1), ("y", 0.0, 0))]
    assert build_pairs(together) == build_pairs(together)
    turned = build_pairs(together[4:] + together[:4])
    assert turned.items == tuple(reversed(build_pairs(together).items))


def test_feedback_takes_every_different_reply():
    built = build_feedback([*MIXED, *RIGHT, *RIGHT])
    assert [item.is_desirable for item in built.items] == [True, False, True, False, True, True]
    assert (built.report.num_desirable, built.report.left_out) == (4, {"repeated": 2})


def test_feedback_from_scores_needs_a_threshold():
    scored = replies("s", ("a", 0.1, None), ("b", 0.5, None))
    with pytest.raises(InputError, match=r"'s/0'.*no threshold"):
        build_feedback(scored)
    assert [item.is_desirable for item in build_feedback(scored, threshold=0.5).items] == [False, True]


def test_best_of_n():
    """The best of each prompt, the first of equals; where labels speak, only what is right; none if nothing is."""
    misjudged = replies("j", ("wrong, scored high", 2.0, 0), ("right", 0.5, 1))
    scored = replies("s", ("a", 0.1, None), ("b", 0.4, None))
    built = build_best([*MIXED, *RIGHT, *WRONG, *misjudged, *scored])
    assert [item.messages[-1].content for item in built.items] == ["good but long words", "one", "right", "b"]
    assert built.report.dropped == {"all_wrong": 1}
    above = build_best([*MIXED, *scored], threshold=0.5)
    assert [item.id for item in above.items] == ["m/0"] and above.report.dropped == {"no_margin": 1}


def test_length_difference_by_hand():
    """Words 3−1, 2−1, 1−1, 1−2: mean (2 + 1 + 0 − 1) / 4; two longer, one shorter: p = 2 (1 + 3) / 8, at most 1."""
    texts = [("a b c", "d"), ("a b", "c"), ("a", "b"), ("a", "b c")]
    pairs = [tuple(replies(str(k), (c, 1.0, 1), (r, 0.0, 0))) for k, (c, r) in enumerate(texts)]
    found = length_difference(pairs)
    assert (found.unit, found.mean) == ("words", 0.5)
    assert (found.num_longer, found.num_shorter, found.num_equal, found.share_longer) == (2, 1, 1, 0.5)
    assert found.p_value == 1.0 and not found.is_biased


@pytest.mark.parametrize(("num_longer", "is_biased"), [(5, False), (6, True)])
def test_the_flag_is_a_sign_test(num_longer, is_biased):
    """n of n longer: p = 2 / 2ⁿ, 0.0625 for five and 0.03125 for six. Systematically shorter is no such flag."""
    pairs = [tuple(replies(str(k), ("a b", 1.0, 1), ("c", 0.0, 0))) for k in range(num_longer)]
    found = length_difference(pairs)
    assert found.p_value == pytest.approx(2 / 2**num_longer) and found.is_biased is is_biased
    turned = length_difference([(rejected, chosen) for chosen, rejected in pairs])
    assert turned.p_value == pytest.approx(found.p_value) and not turned.is_biased


def test_the_sign_test_by_enumeration():
    """All 2⁷ outcomes of seven fair coins: the share at least as uneven as m heads, in either direction."""
    for more in range(8):
        uneven = [abs(2 * sum(coins) - 7) >= abs(2 * more - 7) for coins in itertools.product((0, 1), repeat=7)]
        assert sign_test(more, 7 - more) == pytest.approx(sum(uneven) / 2**7)
    assert sign_test(0, 0) == 1.0
    assert math.isclose(sign_test(60_000, 59_000), 0.0038, rel_tol=0.05)  # normal: z = 999 / √119000 = 2.896


def test_tokens_are_the_unit_where_all_are_known():
    known = replies("k", ("a", 1.0, 1), ("b", 0.0, 0), num_tokens=4)
    assert build_pairs(known).report.length.unit == "tokens"
    row = build_pairs([*known, *MIXED]).report.as_row()
    assert row["length"]["unit"] == "words" and row["length"]["is_biased"] is False
