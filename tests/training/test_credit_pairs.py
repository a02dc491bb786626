"""Pairs and feedback of judged groups: what is trained, with which facts, and what is said of it. All by hand."""

from __future__ import annotations

import pytest

from lydian.data.pair_rules import PairRules
from lydian.data.problems import Preference
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Finish, Sampling
from lydian.data.verdict import Group, Scored
from lydian.text.encode import encode_items
from lydian.training.algorithms import ALGORITHMS
from lydian.training.credit_pairs import JudgedFeedback, JudgedPairs
from lydian.training.settings import StageSettings
from lydian.training.stage import make_credit
from tests.training.toys import STOP, Letters, group, ids_of, problem, trajectory, verdict

MIXED = group("fg", ("abc", 1.0), ("d", 0.0), ("e", 1.0), ("kl", None), sampling=Sampling(temperature=0.7))


def pairs_of(groups: list[Group], **rules):
    return JudgedPairs(rules=PairRules(**rules)).items(groups, {})


def cut_off(question: str, *judged: tuple[str, float | None]) -> Group:
    """A group whose members all hit the limit on new tokens."""
    members = tuple(
        Scored(trajectory=trajectory(question, reply, sample=k, finish=Finish.LENGTH), verdict=verdict(score))
        for k, (reply, score) in enumerate(judged)
    )
    return Group(problem=problem(question), members=members)


def test_a_pair_is_trained_on_the_sampled_ids_like_a_given_preference():
    """The same replies, as given texts and as samples: equal ids, equal trained places, temperature 1 (not the
    sampling's 0.7), no stream of the sampler, equal facts."""
    (sampled,) = pairs_of([MIXED])
    text = Preference(id="fg", messages=problem("fg").messages, chosen="abc", rejected="d")
    (given,) = encode_items([text], Letters())
    for ours, theirs in ((sampled.chosen, given.chosen), (sampled.rejected, given.rejected)):
        assert ours.tokens == theirs.tokens and ours.trained == theirs.trained
        assert ours.temperature == theirs.temperature == 1.0
        assert ours.streams == theirs.streams == {}
        assert dict(ours.facts) == dict(theirs.facts)
    assert (sampled.chosen.id, sampled.rejected.id) == ("fg/0", "fg/1")
    assert sampled.chosen.group == sampled.rejected.group == "fg"


def test_rules_choose_by_the_sampled_tokens():
    """`abc`, `d`, `e` have 4, 2 and 2 tokens with their stop: `e` matches `d` in length."""
    (matched,) = pairs_of([MIXED], rule="length_matched")
    assert (matched.chosen.id, matched.rejected.id) == ("fg/2", "fg/1")


def test_pairs_are_numbered_through_the_round():
    """Objectives join the two sides of a pair by its number."""
    groups = [group(q, ("a", 1.0), ("b", 0.0), ("c", 1.0), ("d", 0.0)) for q in ("f", "g")]
    pairs = pairs_of(groups, most=2)
    assert [(p.chosen.id, p.rejected.id) for p in pairs] == [
        ("f/0", "f/1"),
        ("f/2", "f/3"),
        ("g/0", "g/1"),
        ("g/2", "g/3"),
    ]
    assert [p.chosen.facts["pair"] for p in pairs] == [p.rejected.facts["pair"] for p in pairs] == [0, 1, 2, 3]
    assert all(p.chosen.facts["is_chosen"] == 1 and p.rejected.facts["is_chosen"] == 0 for p in pairs)


def test_groups_that_say_nothing_give_no_pair_and_are_counted():
    """Failed ones never stand in a pair: `h` is left with one scored member. Of three pairs' worth of groups one
    remains, its chosen reply 4 tokens, its rejected 2."""
    groups = [
        MIXED,
        group("h", ("a", 1.0), ("b", None)),
        group("i", ("a", 1.0), ("b", 1.0)),
        group("j", ("a", 0.0), ("b", 0.0)),
        group("k", ("a", 1.0), ("a", 1.0)),
    ]
    credit = JudgedPairs()
    assert len(credit.items(groups, {})) == 1
    assert credit.metrics(groups) == {
        "pairs": 1.0,
        "copies": 1.0,
        "dropped_all_right": 1.0,
        "dropped_all_wrong": 1.0,
        "dropped_too_few": 2.0,
        "pair_length_difference": 2.0,
        "chosen_longer": 1.0,
    }


def test_scores_of_a_judge_make_pairs_without_right_and_wrong():
    """A reward model's scores, all below what would pass: the best of three against the worst."""
    scored = group("f", ("a", -0.5), ("b", 0.25), ("c", -2.0))
    assert pairs_of([scored]) == []
    (pair,) = pairs_of([scored], wrong_chosen=True, margin=2.25)
    assert (pair.chosen.id, pair.rejected.id) == ("f/1", "f/2")


def test_the_same_samples_give_the_same_pairs():
    assert pairs_of([MIXED], most=2) == pairs_of([MIXED], most=2)


def test_cut_off_completions_are_left_out_where_they_are_not_trained():
    cut = cut_off("f", ("a", 1.0), ("b", 0.0))
    assert len(JudgedPairs().items([cut], {})) == 1
    assert JudgedPairs(train_truncated=False).items([cut], {}) == []
    assert JudgedFeedback(train_truncated=False).items([cut], {}) == []


def test_feedback_is_every_judged_completion_copies_and_all():
    """Five samples of which one was not judged: four sequences, desirable where correct."""
    judged = group("fg", ("a", 1.0), ("b", 0.0), ("a", 1.0), ("c", None), ("d", 0.5))
    credit = JudgedFeedback()
    items = credit.assign(credit.items([judged], {}))
    assert all(isinstance(item, Sequence) for item in items)
    assert [(s.id, s.facts) for s in items] == [
        ("fg/0", {"is_desirable": 1.0}),
        ("fg/1", {"is_desirable": 0.0}),
        ("fg/2", {"is_desirable": 1.0}),
        ("fg/4", {"is_desirable": 0.0}),
    ]
    assert items[0].tokens == (*ids_of("fg"), *ids_of("a"), STOP)
    assert items[0].temperature == 1.0 and items[0].streams == {}
    assert credit.metrics([judged]) == {"desirable": 0.5}
    assert credit.metrics([group("f", ("a", None))]) == {}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("online_dpo", JudgedPairs),
        ("online_ipo", JudgedPairs),
        ("iterative_rpo", JudgedPairs),
        ("online_kto", JudgedFeedback),
    ],
)
def test_rows_get_the_credit_that_they_name(row: str, kind: type):
    settings = StageSettings(pairs=PairRules(rule="length_matched"), train_truncated=False)
    credit = make_credit(ALGORITHMS[row], settings, max_tokens=4)
    assert isinstance(credit, kind) and not credit.train_truncated
    assert kind is JudgedFeedback or credit.rules == settings.pairs
