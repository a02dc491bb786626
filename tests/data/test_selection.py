"""Duplicates, shares and limits depend on what is asked, never on where it was found."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from lydian.data.problems import Conversation, Message, Problem
from lydian.data.rows import load_problems
from lydian.data.selection import drop_duplicates, limit, normalised_text, take_share
from lydian.errors import InputError

MAWPS = Path(os.environ.get("LYDIAN_DATA", Path(__file__).parents[2] / "../shared/data")) / "mawps"


def problem(text, number=0, system=None):
    messages = (Message(role="user", content=text),)
    return Problem(
        id=f"p{number}", messages=((Message(role="system", content=system), *messages) if system else messages)
    )


def text(question):
    return normalised_text(problem(question))


@pytest.fixture(scope="module")
def many():
    return [problem(f"How much is {n} + {n * n}?", n) for n in range(2000)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Joan found 70 shells on the beach . She has 2 .", "joan  found 70 shells\non the beach. She has 2."),
        ("Sam 's “blue” pens, all new: how many?", 'Sam\'s "blue" pens all new how many'),
        ("It costs $ 5.00.", "It costs $5.00 ."),
        ("1,200,000 people", "1200000 people"),
        ("a two-step sum", "a two step sum"),
        ("2+3*(4-1)", "2 + 3 * ( 4 - 1 )"),
        ("Cafe\u0301 STRASSE", "café straße"),
    ],
)
def test_the_same_problem_written_twice(one, other):
    assert text(one) == text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2 + 3", "2 - 3"),
        ("2 * 3", "2 / 3"),
        ("2 < 3", "2 > 3"),
        ("-3 + 4", "3 + 4"),
        ("3.5 kg", "35 kg"),
        ("3.5 kg", "3 5 kg"),
        ("1,2 and 3", "12 and 3"),
        ("(2 + 3) * 4", "2 + 3 * 4"),
        ("2² = ?", "22 = ?"),
        ("5% of 8", "5 of 8"),
        ("what is कि", "what is की"),
    ],
)
def test_different_problems_stay_different(one, other):
    assert text(one) != text(other)


def test_only_what_is_asked_counts():
    """A system message or a worked solution does not make another problem; an earlier turn does."""
    question = Message(role="user", content="2 + 3?")
    solved = Conversation(id="c", messages=(question, Message(role="assistant", content="5")))
    turns = (Message(role="user", content="Let x = 1."), Message(role="assistant", content="Done."), question)
    earlier = Problem(id="e", messages=turns)
    assert text("2 + 3?") == normalised_text(problem("2 + 3?", system="Be brief.")) == normalised_text(solved)
    assert normalised_text(earlier) == "let x = 1 done 2 + 3"
    plain = Conversation(id="t", messages=(Message(role="assistant", content="Once upon a time."),))
    assert normalised_text(plain) == "once upon a time"


def test_the_first_of_several_is_kept():
    problems = [problem("A b.", 0), problem("C?", 1), problem("a  B", 2), problem("c ?", 3), problem("D", 4)]
    kept, num_dropped = drop_duplicates(problems)
    assert ([p.id for p in kept], num_dropped) == (["p0", "p1", "p4"], 2)


def test_shares_part_the_items(many):
    shares = [take_share(many, low, high, seed=3) for low, high in ((0, 0.2), (0.2, 0.7), (0.7, 1))]
    assert sorted(p.id for share in shares for p in share) == sorted(p.id for p in many)
    # Five standard deviations of a binomial count: 5 √(2000 · 0.2 · 0.8) = 89, 5 √(2000 · 0.5 · 0.5) = 112.
    assert abs(len(shares[0]) - 400) < 90 and abs(len(shares[1]) - 1000) < 112
    assert take_share(many, 0, 0.2, seed=4) != shares[0]


def test_a_problem_keeps_its_share_whatever_surrounds_it(many):
    share = take_share(many, 0.2, 0.7, seed=3)
    shuffled = random.Random(0).sample(many, 900)
    assert {p.id for p in take_share(shuffled, 0.2, 0.7, seed=3)} == {p.id for p in share} & {p.id for p in shuffled}
    respaced = [problem(p.question.replace("?", "  ?").upper(), n) for n, p in enumerate(many)]
    assert [p.id for p in take_share(respaced, 0.2, 0.7, seed=3)] == [p.id for p in share]


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0, 1.1)])
def test_a_share_that_is_none_is_refused(many, low, high):
    with pytest.raises(InputError, match="0 ≤ low < high ≤ 1"):
        take_share(many, low, high, seed=0)


def test_a_limit_does_not_depend_on_order_and_grows_by_adding(many):
    chosen = limit(many, 50, seed=1)
    assert limit(reversed(many), 50, seed=1) == chosen
    assert limit(many, 80, seed=1)[:50] == chosen
    assert limit(many, 50, seed=2) != chosen
    assert len(limit(many, 5000, seed=1)) == 2000
    with pytest.raises(InputError, match="≥ 1"):
        limit(many, 0, seed=1)


def test_a_limit_is_a_fair_sample_of_a_share(many):
    """Were both choices the same hash, all of the 100 would come from the first half of the share; 50 ± 25 should."""
    share = take_share(many, 0, 0.5, seed=1)
    first_half = {p.id for p in take_share(many, 0, 0.25, seed=1)}
    assert 25 < sum(p.id in first_half for p in limit(share, 100, seed=1)) < 75


@pytest.mark.skipif(not MAWPS.is_dir(), reason=f"no data at {MAWPS}; set LYDIAN_DATA")
def test_mawps_train_and_held_out_share_no_problem():
    """The four files repeat each other's problems, spaced differently: 2,065 rows, 1,851 problems.

    A split by row would leave many on both sides; a split by text leaves none, in whichever file they are.
    """
    files = [load_problems(path).items for path in sorted(MAWPS.glob("*.jsonl"))]
    items = [p for file in files for p in file]
    assert len(items) == 2065
    assert (len(drop_duplicates(items)[0]), drop_duplicates(items)[1]) == (1851, 214)
    train = {normalised_text(p) for file in files for p in take_share(file, 0, 0.7, seed=0)}
    held_out = {normalised_text(p) for file in files for p in take_share(file, 0.7, 1, seed=0)}
    assert not train & held_out and len(train | held_out) == 1851
    shuffled = random.Random(0).sample(items, len(items))
    by_row = [{normalised_text(p) for p in part} for part in (shuffled[:1400], shuffled[1400:])]
    assert by_row[0] & by_row[1]
