"""Generated problems: what is written is true, splits share nothing, and habits come as often as asked."""

from __future__ import annotations

import re

import pytest

from lydian.data.arithmetic import (
    GENERATORS,
    arithmetic_preferences,
    arithmetic_problems,
    arithmetic_solutions,
    arithmetic_text,
)
from lydian.data.chains import LARGEST, SPLITS
from lydian.data.problems import check_unique_ids
from lydian.errors import DataError

STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
WORDS = {"Add": "+", "Gain": "+", "Put in": "+", "Subtract": "-", "Lose": "-", "Take away": "-", "Times": "*"}
WORDS |= {"Multiply by": "*", "Divide by": "/", "Share among": "/"}


def chain_of(question: str) -> list[str]:
    """`Start with 14. Gain 9.` → ["14", "+9"]: numbers and operations without the wording."""
    first, *rest = question.removesuffix(".").split(". ")
    parts = [part.rpartition(" ") for part in rest]
    return [first.removeprefix("Start with "), *(WORDS[words] + number for words, _, number in parts)]


def result_of(chain: list[str]) -> list[int]:
    """Start and results, by Python's own arithmetic; a division must leave no remainder."""
    values = [int(chain[0])]
    for operation in chain[1:]:
        value, operand = values[-1], int(operation[1:])
        if operation[0] == "/":
            assert value % operand == 0 and value > 0
        results = {"+": value + operand, "-": value - operand, "*": value * operand, "/": value // operand}
        values.append(results[operation[0]])
    return values


def wrong_steps(text: str) -> int:
    return sum(
        int(c) != {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) // int(b)}[op]
        for a, op, b, c in STEP.findall(text)
    )


def test_answers_are_right_and_numbers_stay_small():
    for problem in arithmetic_problems(num=300, split="train", min_level=1, max_level=6):
        values = result_of(chain_of(problem.question))
        assert problem.answer == str(values[-1])
        assert all(0 <= value <= LARGEST for value in values)
        assert problem.metadata["level"] == len(values) - 1


def test_solutions_write_each_step_and_end_with_the_answer():
    """`14+9=23, 23-6=17 #### 17` for `Start with 14. Add 9. Subtract 6.`: rebuilt here from the question."""
    for item in arithmetic_solutions(num=300):
        chain = chain_of(item.messages[0].content)
        values = result_of(chain)
        steps = ", ".join(f"{a}{op}={b}" for a, op, b in zip(values, chain[1:], values[1:], strict=False))
        assert item.messages[1].content == f" {steps} #### {values[-1]}"


def test_splits_share_no_chain_whatever_the_seed():
    """Chains, not wordings: `Add 9` and `Gain 9` are the same."""
    chains = {
        split: {
            tuple(chain_of(p.question))
            for seed in (0, 1)
            for p in arithmetic_problems(num=800, split=split, min_level=1, max_level=2, seed=seed)
        }
        for split in SPLITS
    }
    assert not chains["train"] & chains["heldout"]
    assert not chains["train"] & chains["validation"]
    assert not chains["heldout"] & chains["validation"]


def test_what_is_learned_from_comes_from_the_train_split():
    heldout = {tuple(chain_of(p.question)) for p in arithmetic_problems(num=800, split="heldout", max_level=2)}
    solutions = [s.messages[0].content for s in arithmetic_solutions(num=800, max_level=2)]
    texts = [t.messages[0].content.partition("\n")[0] for t in arithmetic_text(num=3000, max_level=2)]
    assert not heldout & {tuple(chain_of(question)) for question in solutions + texts}


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_are_functions_of_the_seed_and_ids_are_unique(name: str):
    make = GENERATORS[name]
    split = {"split": "train"} if name == "arithmetic" else {}
    once = make(num=60, seed=3, **split)
    assert make(num=60, seed=3, **split) == once
    assert [x.messages for x in make(num=60, seed=4, **split)] != [x.messages for x in once]
    check_unique_ids(once, where=name)
    assert len(once) == 60


def test_problems_are_all_different_and_cover_the_levels():
    problems = arithmetic_problems(num=300, split="heldout", min_level=2, max_level=4)
    assert len({p.question for p in problems}) == 300
    assert {p.metadata["level"] for p in problems} == {2, 3, 4}


@pytest.mark.parametrize("seed", range(3))
def test_rejected_replies_have_a_wrong_step_each(seed: int):
    """Also where the result is zero, which an error below it leaves as it is: the reply would equal the chosen one."""
    preferences = arithmetic_preferences(num=600, min_level=1, max_level=1, seed=seed)
    assert any(p.chosen.endswith("#### 0") for p in preferences)
    for p in preferences:
        assert wrong_steps(p.chosen) == 0
        assert wrong_steps(p.rejected) == 1
        assert re.search(r" #### \d+$", p.rejected)


def test_texts_err_as_often_as_asked():
    """At rate 0 never; at 0.2 in about a fifth of the steps (an error below zero is none, so a little less)."""
    texts = [t.messages[0].content for t in arithmetic_text(num=1500, error_rate=0.0)]
    assert sum(map(wrong_steps, texts)) == 0
    texts = [t.messages[0].content for t in arithmetic_text(num=1500, error_rate=0.2)]
    num_steps = sum(len(STEP.findall(text)) for text in texts)
    assert 0.17 < sum(map(wrong_steps, texts)) / num_steps < 0.21


def test_the_stated_format_depends_on_the_wording_as_asked():
    """Share 0.9 where the first operation is worded the first way, 0.1 where it is not; three standard errors of 1,500
    texts or more are 0.03."""
    usual = tuple(f". {words} " for words in ("Add", "Subtract", "Times", "Divide by"))
    counts = {True: [0, 0], False: [0, 0]}
    for text in (t.messages[0].content for t in arithmetic_text(num=6000, formatted_share=0.9)):
        first_operation = re.match(r"Start with \d+(\. [A-Z][a-z ]+)", text)
        assert first_operation is not None
        count = counts[first_operation[1].startswith(usual)]
        count[0] += re.search(r" #### \d+$", text) is not None
        count[1] += 1
    assert min(num for _, num in counts.values()) > 1500
    assert counts[True][0] / counts[True][1] == pytest.approx(0.9, abs=0.03)
    assert counts[False][0] / counts[False][1] == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    "settings",
    [{"split": "test"}, {"split": "train", "min_level": 0}, {"split": "train", "min_level": 3, "max_level": 2}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict):
    with pytest.raises(DataError, match="split"):
        arithmetic_problems(num=1, **settings)


def test_more_than_there_are_is_refused_with_how_many_there_are():
    with pytest.raises(DataError, match="at most about"):
        arithmetic_problems(num=600, split="validation", min_level=1, max_level=1)


def test_careless_replies_are_in_another_format_or_wrong():
    """Half and half, by a fair coin (600 draws: 50 % ± 4 standard deviations of 2 %): what states its answer in the
    format states a wrong one. The other kind is told from the word of a recipe."""
    preferences = arithmetic_preferences(num=600, rejected="careless", seed=3)
    stated = [p for p in preferences if "####" in p.rejected]
    assert 0.42 < len(stated) / 600 < 0.58
    assert all(p.rejected.rpartition("#### ")[2] != p.chosen.rpartition("#### ")[2] for p in stated)
    with pytest.raises(DataError, match="careless"):
        arithmetic_preferences(num=1, rejected="lazy")  # type: ignore[arg-type]


def test_idle_steps_say_nothing_and_stand_in_longer_replies_for_better_ones():
    """Of two even draws of 0, 1, 2 the larger is 1/9 · 0 + 3/9 · 1 + 5/9 · 2 = 13/9 in the mean, the smaller 5/9;
    the standard deviation of either is √(38)/9 ≈ 0.69, of a mean of 900 0.023."""
    pairs = arithmetic_preferences(num=900, max_idle=2, seed=3)
    chosen = [p.chosen.count("+0=") for p in pairs]
    rejected = [p.rejected.count("+0=") for p in pairs]
    assert all(more >= less for more, less in zip(chosen, rejected, strict=True))
    assert sum(chosen) / 900 == pytest.approx(13 / 9, abs=0.1) and sum(rejected) / 900 == pytest.approx(5 / 9, abs=0.1)
    solutions = [c.messages[1].content for c in arithmetic_solutions(num=900, max_idle=2, seed=3)]
    assert sum(text.count("+0=") for text in solutions) / 900 == pytest.approx(1.0, abs=0.15)
    plain = [c.messages[1].content for c in arithmetic_solutions(num=900, seed=3)]
    assert [re.sub(r", \d+\+0=\d+", "", text) for text in solutions] == plain
    assert not any("+0=" in p.chosen + p.rejected for p in arithmetic_preferences(num=100, seed=3))


def test_the_longer_reply_is_chosen_as_often_as_asked():
    """Where the two differ, in 6 of 9 pairs. Of 600 such pairs a share of 0.7 has a standard deviation of 0.019."""
    pairs = arithmetic_preferences(num=900, max_idle=2, longer_chosen=0.7, seed=3)
    gaps = [p.chosen.count("+0=") - p.rejected.count("+0=") for p in pairs]
    unequal = [gap for gap in gaps if gap]
    assert len(unequal) / 900 == pytest.approx(6 / 9, abs=0.06)
    assert sum(gap > 0 for gap in unequal) / len(unequal) == pytest.approx(0.7, abs=0.08)
