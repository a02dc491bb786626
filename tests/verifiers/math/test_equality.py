"""Pairs of answers that are equal, and pairs that are not, in `math_cases.jsonl`: each decided by hand, by the default
policy; either order must give the same verdict."""

import json
from pathlib import Path

import pytest

from lydian.errors import RecipeError
from lydian.verifiers.math import equality, leaves
from lydian.verifiers.math.bounds import TooLarge, check_size
from lydian.verifiers.math.equality import compare, load_libraries
from lydian.verifiers.math.notation import tidy
from lydian.verifiers.math.policy import Policy

CASES = [json.loads(line) for line in (Path(__file__).parent / "math_cases.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("is_equal", [True, False])
def test_answers_are_told_apart_the_same_either_way_round(is_equal: bool) -> None:
    load_libraries()
    wrong = [
        (case["gold"], case["prediction"], compare(*pair))
        for case in CASES
        if case["equal"] is is_equal
        for pair in ((case["gold"], case["prediction"]), (case["prediction"], case["gold"]))
        if compare(*pair)[0] is not is_equal
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("settings", "gold", "prediction", "is_equal"),
    [
        ({}, "50%", "50", False),
        ({"percent": "either"}, "50%", "50", True),
        ({"units": "ignored"}, "5 cm", "5 m", True),
        ({"units": "required"}, "5 cm", "5", False),
        ({"units": "required"}, "5 cm", "50 mm", True),
        ({"base": "value"}, "101_2", "5", True),
        ({}, "101_2", "5", False),
        ({"labels": "required"}, "x=5", "5", False),
        ({"relations": "distinct"}, "x>2", r"(2,\infty)", False),
        ({"lists": "ordered"}, "1, 2", "2, 1", False),
        ({"commas": "thousands"}, "1.5", "1,5", False),
        ({"commas": "decimal"}, "1.234", "1,234", True),
        ({"digits": 3}, "1/3", "0.333", True),
    ],
)
def test_each_policy_changes_what_it_names(settings, gold: str, prediction: str, is_equal: bool) -> None:
    load_libraries()
    policy = Policy(**settings)
    assert compare(gold, prediction, policy)[0] is is_equal
    assert compare(prediction, gold, policy)[0] is is_equal


def test_a_percentage_that_was_asked_for_may_be_given_without_its_sign() -> None:
    load_libraries()
    assert compare(r"\frac{1}{3}\%", r"\frac{2}{6}", is_percent_asked=True)[0]
    assert not compare(r"\frac{1}{3}\%", r"\frac{2}{6}")[0]


def test_a_policy_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(RecipeError, match="units"):
        Policy(units="sometimes")
    with pytest.raises(RecipeError, match="digits"):
        Policy(digits=0)


@pytest.mark.parametrize(
    "text", ["9^{9^{9^{9}}}", "(10^8)!", "99999999999!", r"\binom{1000000}{5}", "x^{10000000}", "(" * 99, "7" * 1001]
)
def test_what_must_not_be_computed_is_refused_before_it_is_parsed(text: str) -> None:
    with pytest.raises(TooLarge):
        check_size(text)


@pytest.mark.parametrize("text", ["2^{1000}", r"\frac{1}{2006!}", r"\binom{100}{50}", "2^{2^{3}}", "x^{10}"])
def test_what_can_be_computed_is_not_refused(text: str) -> None:
    check_size(text)


def test_notation_is_idempotent() -> None:
    for case in CASES[::5]:
        once = tidy(case["gold"])
        assert tidy(once) == once


def test_reading_in_two_stages_reads_the_same() -> None:
    """Fast prediction first, full prediction where that fails: of each form the tree is that of full prediction."""
    import sympy
    from latex2sympy2_extended import latex2sympy2

    load_libraries()
    reader = latex2sympy2._Latex2Sympy
    staged = reader.__dict__["create_parser"]
    texts = (
        "x^2+2 \\cdot 3 x+9",
        r"\frac{\sqrt{5}}{2}",
        "y=3x+1",
        r"x \in [1, 2)",
        r"\sin 2x",
        r"\{1, 2\}",
        "1,234",
        "2(",
    )

    def read_all() -> list[str]:
        found = []
        for text in texts:
            try:
                found.append(sympy.srepr(latex2sympy2.latex2sympy(text)))
            except Exception as error:  # noqa: BLE001  the library raises bare exceptions
                found.append(type(error).__name__)
        return found

    assert reader().create_parser(r"5\text{ cm}^3").math() is not None  # by full prediction only
    quick = read_all()
    try:
        reader.create_parser = staged._make
        assert read_all() == quick and "Exception" in quick[-1]
    finally:
        reader.create_parser = staged


@pytest.mark.parametrize(
    ("module", "a", "b"),
    [(equality, r"(1,2) \cup (3,4)", r"(1,2) \cup (5,6)"), (leaves, "x+1", "2y"), (leaves, "2 x m", "y km")],
)
def test_sympy_is_asked_the_same_question_either_way_round(module, a: str, b: str, monkeypatch) -> None:
    """math-verify treats gold and prediction unlike; which of the two is the gold must not reach it."""
    asked: list[tuple[str, str]] = []

    def record(first: str, second: str, **_: object) -> tuple[bool, str]:
        asked.append((first, second))
        return False, ""

    monkeypatch.setattr(module, "are_equal", record)
    compare(a, b)
    there = list(asked)
    asked.clear()
    compare(b, a)
    assert asked == there and there
