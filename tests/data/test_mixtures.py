"""Mixtures of data sets: shares at every point of the order, caps, repetition, and that nothing depends on chance."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lydian.data.mixtures import mix
from lydian.data.problems import Conversation, Feedback, Message, Preference, Problem
from lydian.errors import InputError

ASK = (Message(role="user", content="Q"),)


def problems(num):
    return [Problem(id=str(k), messages=ASK) for k in range(num)]


def ten(item):
    return 10


def source(item):
    return item.id.partition("/")[0]


def test_shares_hold_at_every_point():
    """3 : 1, each item taken from the set that has the least for its weight: never off by more than one item."""
    found = mix({"new": problems(90), "old": problems(40)}, {"new": 0.75, "old": 0.25}, ten)
    for num in range(1, len(found.items) + 1):
        taken = Counter(map(source, found.items[:num]))
        assert abs(taken["new"] - 0.75 * num) <= 1 and abs(taken["old"] - 0.25 * num) <= 1
    assert found.parts["new"].share == 0.75


def test_the_mixture_ends_where_the_first_set_is_used_up():
    """30 new, 5 old, 3 : 1. The old ones reach for 20 items: 15 new, 5 old; the sixth old one is not there."""
    found = mix({"new": problems(30), "old": problems(5)}, {"new": 3, "old": 1}, ten)
    assert (len(found.items), found.ended_by) == (20, "old")
    old, new = found.parts["old"], found.parts["new"]
    assert (old.num_examples, old.num_tokens, old.share_examples, old.epochs) == (5, 50, 0.25, 1.0)
    assert (new.num_examples, new.epochs, new.num_different) == (15, 0.5, 15)


def test_repetition_is_bounded_and_shows_in_the_ids():
    """2.5 passes over four items are ten: each twice, two of them thrice."""
    found = mix({"new": problems(100), "old": problems(4)}, {"new": 5, "old": 1}, ten, max_epochs=2.5)
    taken = Counter(item.id.partition("#")[0] for item in found.items if source(item) == "old")
    assert sorted(taken.values()) == [2, 2, 3, 3]
    assert found.parts["old"].epochs == 2.5 and found.parts["old"].num_different == 4
    assert len({item.id for item in found.items}) == len(found.items)
    assert {"old/0", "old/0#2"} <= {item.id for item in found.items}


def test_caps():
    sets, weights = {"a": problems(50), "b": problems(50)}, {"a": 1, "b": 1}
    examples = mix(sets, weights, ten, cap_examples=7)
    assert (len(examples.items), examples.ended_by) == (7, "cap_examples")
    tokens = mix(sets, weights, ten, cap_tokens=75)
    assert (len(tokens.items), tokens.ended_by) == (7, "cap_tokens")
    assert mix(sets, weights, ten, cap_examples=7, cap_tokens=30).ended_by == "cap_tokens"
    assert mix(sets, weights, ten, cap_tokens=5).items == ()


def test_a_larger_cap_only_adds():
    sets, weights = {"a": problems(50), "b": problems(20)}, {"a": 2, "b": 1}
    small, large = (mix(sets, weights, ten, cap_examples=cap).items for cap in (11, 40))
    assert large[:11] == small


def test_shares_of_tokens():
    """Long items of 30 tokens, short ones of 10, equal shares of tokens: one long for three short."""
    sets = {"long": problems(10), "short": problems(100)}

    def size(item):
        return 30 if source(item) == "long" else 10

    found = mix(sets, {"long": 1, "short": 1}, size, weigh_by="tokens")
    assert found.ended_by == "long" and found.parts["long"].num_tokens == 300
    assert abs(found.parts["short"].num_tokens - 300) <= 10
    assert found.parts["long"].share_tokens == pytest.approx(0.5, abs=0.01)
    assert found.parts["long"].share_examples == pytest.approx(0.25, abs=0.01)


def test_the_order_is_a_function_of_the_seed_alone():
    """Rows in another order of the file change nothing; another seed does; passes are in orders of their own."""
    sets, weights = {"a": problems(40), "b": problems(40)}, {"a": 1, "b": 1}
    found = mix(sets, weights, ten, max_epochs=2.0).items
    shuffled = {name: random.Random(3).sample(items, len(items)) for name, items in sets.items()}
    assert mix(shuffled, weights, ten, max_epochs=2.0).items == found
    assert mix(sets, weights, ten, max_epochs=2.0, seed=1).items != found
    numbers = [item.id.removeprefix("a/").partition("#") for item in found if source(item) == "a"]
    first, second = ([n for n, _, again in numbers if again == which] for which in ("", "2"))
    assert sorted(first) == sorted(second) and first != second
    assert first != sorted(first, key=int)


def test_other_kinds_mix_too():
    ask = Message(role="user", content="Q")
    reply = Message(role="assistant", content="R")
    items = (
        Conversation(id="1", messages=(ask, reply)),
        Preference(id="1", messages=ASK, chosen="R", rejected="S"),
        Feedback(id="1", messages=ASK, reply="R", is_desirable=True),
    )
    for item in items:
        assert [i.id for i in mix({"a": [item], "b": [item]}, {"a": 1, "b": 1}, ten).items] == ["a/1", "b/1"]


@pytest.mark.parametrize(
    ("sets", "weights", "settings", "message"),
    [
        ({"a": problems(1)}, {"b": 1}, {}, "a weight for each set"),
        ({}, {}, {}, "a weight for each set"),
        ({"a": problems(1), "b": []}, {"a": 1, "b": 1}, {}, "nothing in b"),
        ({"a": problems(1)}, {"a": 0}, {}, "finite numbers > 0"),
        ({"a": problems(1)}, {"a": float("inf")}, {}, "finite numbers > 0"),
        ({"a": problems(1)}, {"a": 1}, {"cap_tokens": 0}, "integers ≥ 1"),
        ({"a": problems(1)}, {"a": 1}, {"max_epochs": 0.0}, "a finite number > 0"),
    ],
)
def test_what_is_refused(sets, weights, settings, message):
    with pytest.raises(InputError, match=message):
        mix(sets, weights, ten, **settings)
