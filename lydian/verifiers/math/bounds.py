"""Is an expression small enough to compute with? Decided on the text, before anything is parsed."""

from __future__ import annotations

import re

MAX_DEPTH = 60
MAX_DIGITS = 1000
MAX_FACTORIAL = 5000
MAX_EXPONENT = 20_000

_FACTORIAL = re.compile(r"(\d+)\s*!")
_OF_BRACKETS = re.compile(r"[)}]\s*!(?!=)")
_BINOMIAL = re.compile(r"\\binom\s*\{?\s*(\d+)")
_POWER = re.compile(r"(\d|\S)\s*\^\s*\{?\s*\(?\s*-?\s*(\d+)")
_TOWER = re.compile(r"\^\s*[{(]*\s*-?\s*(\d+)[})]?\s*\^\s*[{(]*\s*(\d+)")


class TooLarge(Exception):
    """The expression must not be computed; the message says what is too large."""


def check_size(text: str) -> None:
    """Raises TooLarge for deep nesting, huge numbers, towers of powers, factorials and binomials of large numbers.

    >>> check_size("2^{1000}")
    >>> check_size("9^{9^{9}}")
    Traceback (most recent call last):
    lydian.verifiers.math.bounds.TooLarge: a tower of powers
    """
    depth = deepest = 0
    for char in text:
        if char in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")}]":
            depth -= 1
    if (
        deepest > MAX_DEPTH
        or len(re.findall(r"\\(?:frac|sqrt)", text)) > MAX_DEPTH
        or re.search(r"-{60}|(?:\^\s*){3}", text)
    ):
        raise TooLarge(f"nested deeper than {MAX_DEPTH}")
    if any(len(digits) > MAX_DIGITS for digits in re.findall(r"\d+", text)):
        raise TooLarge(f"a number of more than {MAX_DIGITS} digits")
    if any(len(n) > 9 or int(n) > MAX_FACTORIAL for n in _FACTORIAL.findall(text)) or re.search(
        r"\d!\s*!|!\s*\)\s*!", text
    ):
        raise TooLarge("the factorial of a large number")
    if _OF_BRACKETS.search(text) and re.search(r"\d{4}|\^", text):
        raise TooLarge("the factorial of a large number")
    if any(len(n) > 9 or int(n) > MAX_FACTORIAL for n in _BINOMIAL.findall(text)):
        raise TooLarge("a binomial of large numbers")
    if len(re.findall(r"\\exp(?![a-zA-Z])", text)) > 2:
        raise TooLarge("a tower of powers")
    towers = _TOWER.findall(text)
    if re.search(r"\d\s*[})]*\s*\^", text) and any(
        len(a) > 4 or len(b) > 4 or int(a) ** min(int(b), 99) > MAX_EXPONENT for a, b in towers
    ):
        raise TooLarge("a tower of powers")
    for below, power in _POWER.findall(text):
        if len(power) > 9 or int(power) > MAX_EXPONENT or (not below.isdigit() and int(power) > 1000):
            raise TooLarge("a power with a large exponent")
