from fractions import Fraction

import pytest

from lydian.verifiers.numbers import are_close, find_numbers, parse_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        ("-42", Fraction(-42)),
        ("-$5", Fraction(-5)),
        ("€5", Fraction(5)),
        ("2.50", Fraction(5, 2)),
        (".5", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),  # exactly, unlike float("0.1")
        ("1,234,567", Fraction(1234567)),
        ("1 000", Fraction(1000)),
        ("14{,}916", Fraction(14916)),
        (r"\$15,\!000", Fraction(15000)),
        ("1.234,56", Fraction(123456, 100)),
        ("1.234.567", Fraction(1234567)),
        ("2,74", Fraction(274, 100)),
        ("1.5e3", Fraction(1500)),
        ("5/2", Fraction(5, 2)),
        ("-1/4", Fraction(-1, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\frac13", Fraction(-1, 3)),
        ("1 1/2", Fraction(3, 2)),
        (r"1\frac12", Fraction(3, 2)),
        ("016", Fraction(16)),
        ("42.", Fraction(42)),
    ],
)
def test_a_number_is_read_exactly(text: str, value: Fraction) -> None:
    number = parse_number(text)
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize("text", ["", "x", "12:30", "1/2/2020", "1,2,3", "10^5", "4 apples", "9" * 101, "2x", "1/2/"])
def test_what_is_no_number_is_none(text: str) -> None:
    assert parse_number(text) is None


def test_division_by_zero_has_no_value() -> None:
    number = parse_number("5/0")
    assert number is not None
    assert number.value is None


def test_percent_is_kept_apart_and_divided_out_in_the_amount() -> None:
    number = parse_number(r"33.5\%")
    assert number is not None
    assert (number.value, number.amount) == (Fraction(67, 2), Fraction(67, 200))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10-5=5", ["10", "5", "5"]),  # a minus between numbers is no sign
        ("x_1 = 7 cm^2", ["7"]),
        ("H2O costs $3.", ["3"]),
        ("on the 3rd day 4", ["4"]),
        ("需要300分钟", ["300"]),
    ],
)
def test_digits_inside_words_and_indices_are_left_out(text: str, found: list[str]) -> None:
    assert [number.text for number in find_numbers(text)] == found


def test_tolerance_is_relative_and_integers_are_exact() -> None:
    """|100 − 100.5| / 100.5 = 0.00498: inside 0.005, outside 0.004; two integers must be equal at any tolerance."""
    assert are_close(Fraction(100), Fraction(201, 2), relative_tolerance=0.005)
    assert not are_close(Fraction(100), Fraction(201, 2), relative_tolerance=0.004)
    assert not are_close(Fraction(100), Fraction(101), relative_tolerance=0.5)
