"""Two expressions without structure, read by math-verify and compared exactly, as decimals, or by sympy."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from lydian.verifiers.math.bounds import check_size

_RELATION = re.compile(
    r"\\(?:le|ge|ne|in|notin|subset|subseteq|equiv|approx|sim|cong|perp|parallel|mid)(?![a-zA-Z])|[=<>]"
)
_EXACT_DIGITS = 30
_NEEDS_FULL = re.compile(r"[a-zA-Z]\s*[\^_]")  # x^2, x_1: fast prediction always fails, so the time for it is saved


def load_libraries() -> None:
    """Imports math-verify and sympy, silences what they say about answers they cannot read, and speeds up reading."""
    import math_verify  # noqa: F401
    from latex2sympy2_extended import latex2sympy2  # type: ignore[import-untyped]

    reader = getattr(latex2sympy2, "_Latex2Sympy", None)  # a version without it is read as it reads itself
    make = getattr(reader, "create_parser", None)
    if reader is not None and make is not None and not isinstance(make, _TwoStages):
        reader.create_parser = _TwoStages(make)
    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _TwoStages:
    """Parses by ANTLR's fast prediction (SLL) first, and by the full one where that finds a syntax error.

    Without such an error, both give the same tree, so that only time changes.

    Source: ANTLR 4, PredictionMode.SLL; Parr, Harwell & Fisher (2014), Adaptive LL(*) Parsing, section 3.2.
    """

    def __init__(self, make: Callable[[Any, str], Any]) -> None:
        self._make = make

    def __get__(self, reader: Any, _: type | None = None) -> Any:
        """As a method of a reader; as the attribute of its class, this itself."""
        return self if reader is None else partial(_Staged, partial(self._make, reader))


class _Staged:
    """Stands where a parser stood: `math` is the one rule that is asked of it."""

    def __init__(self, make: Callable[[str], Any], text: str) -> None:
        self._make = make
        self._text = text

    def math(self) -> Any:
        """The tree of the whole text. Raises whatever the parser raises for a text it cannot read."""
        from antlr4.atn.PredictionMode import PredictionMode  # type: ignore[import-untyped]

        if _NEEDS_FULL.search(self._text):
            return self._make(self._text).math()
        parser = self._make(self._text)
        parser._interp.predictionMode = PredictionMode.SLL
        try:
            return parser.math()
        except (MemoryError, RecursionError):
            raise
        except Exception:  # noqa: BLE001  the parser raises bare exceptions for syntax errors
            return self._make(self._text).math()


def has_relation(text: str) -> bool:
    """Whether a relation sign stands in the text."""
    return _RELATION.search(text) is not None


def are_equal(a_text: str, b_text: str, *, tolerance: float, compare_sets: bool) -> tuple[bool, str]:
    """Whether two expressions are equal, and how that was found; the same either way round.

    Raises TooLarge, MemoryError or RecursionError where they cannot be computed with.
    """
    check_size(a_text)
    check_size(b_text)
    if all(re.fullmatch(r"[a-zA-Z]", side.strip()) for side in (a_text, b_text)):
        return a_text.strip() == b_text.strip(), "two letters"  # math-verify takes x for X
    a, b = read(a_text), read(b_text)
    if a is None or b is None:
        return False, "one answer cannot be read as mathematics"
    numbers = _compare_numbers(a, b, tolerance)
    if numbers is not None:
        return numbers, "compared as numbers"
    if _differ_at_points(a, b):
        return False, "they differ where they were evaluated"
    if _is_relation(a) != _is_relation(b) and not compare_sets:
        return False, "a relation and a value"
    if _are_same_rational(a, b):
        return True, "the same after cancelling"
    if _have_same_solutions(a, b):
        return True, "the same solutions"
    try:
        is_equal = _verify(a, b) or ((_is_relation(a) or _is_relation(b)) and _verify(b, a))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001  sympy met something it has no answer for: it was not shown to be equal
        return False, f"cannot be compared: {type(error).__name__}"
    return is_equal, "compared by sympy"


@lru_cache(maxsize=4096)
def read(answer: str) -> Any:
    """The sympy object, or None; i is the imaginary unit unless it counts something."""
    from math_verify import LatexExtractionConfig, parse

    latex = [LatexExtractionConfig()]
    try:
        parsed = parse(f"${answer}$", latex, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001  not LaTeX that anybody can read
        return None
    return _with_imaginary_unit(parsed[0]) if parsed else None


def _with_imaginary_unit(parsed: Any) -> Any:
    from sympy import Basic, I, Symbol

    if not isinstance(parsed, Basic):
        return parsed
    letters = [symbol for symbol in parsed.free_symbols if isinstance(symbol, Symbol) and symbol.name == "i"]
    return parsed.subs(dict.fromkeys(letters, I)) if letters else parsed


def _is_relation(parsed: Any) -> bool:
    from sympy import Symbol
    from sympy.core.relational import Relational
    from sympy.logic.boolalg import Boolean

    return isinstance(parsed, Relational | Boolean) and not isinstance(parsed, Symbol)


def _are_same_rational(a: Any, b: Any) -> bool:
    """Whether rational expressions are equal, or equations have sides whose differences are multiples of each other.

    Cheap and exact; False also where it does not apply.
    """
    from sympy import Eq, Expr, PolynomialError, cancel

    try:
        if isinstance(a, Expr) and isinstance(b, Expr):
            return a.free_symbols == b.free_symbols and bool(cancel(a - b) == 0)
        if isinstance(a, Eq) and isinstance(b, Eq) and a.free_symbols == b.free_symbols:
            left, right = a.lhs - a.rhs, b.lhs - b.rhs
            ratio = cancel(left / right) if right != 0 and left != 0 else left
            return bool(ratio.is_number and ratio.is_finite and ratio != 0)
    except (PolynomialError, NotImplementedError, TypeError, AttributeError, ZeroDivisionError):
        return False
    return False


def _have_same_solutions(a: Any, b: Any) -> bool:
    """Whether two inequalities in one letter hold for the same real numbers."""
    from sympy import Eq

    if not (_is_relation(a) and _is_relation(b)) or isinstance(a, Eq) or isinstance(b, Eq):
        return False
    letters = [sorted(side.free_symbols, key=str) for side in (a, b)]
    if letters[0] != letters[1] or len(letters[0]) != 1:
        return False
    try:
        return bool(a.as_set() == b.as_set())
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return False


def are_same_sets(relations: list[str], other: str) -> bool:
    """Whether the real numbers for which one of the relations holds are those that the other answer names.

    Raises TooLarge where an answer cannot be computed with.
    """
    from sympy import Set, Union

    for text in (*relations, other):
        check_size(text)
    parts, whole = [read(text) for text in relations], read(other)
    try:
        named = whole.as_set() if _is_relation(whole) else whole
        return isinstance(named, Set) and bool(Union(*(part.as_set() for part in parts)) == named)
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return False


def _verify(a: Any, b: Any) -> bool:
    from math_verify import verify

    return bool(
        verify(a, b, float_rounding=11, timeout_seconds=None, allow_set_relation_comp=True, raise_on_error=True)
    )


def _compare_numbers(a: Any, b: Any, tolerance: float) -> bool | None:
    """Equality of two constants, or None if one of them is something else."""
    from sympy import Basic, Float, Rational, nan, zoo

    if not all(isinstance(x, Basic) and getattr(x, "is_number", False) for x in (a, b)):
        return None
    if isinstance(a, Rational) and isinstance(b, Rational):
        return bool(a == b)
    a, b = a.doit(), b.doit()
    if a.has(nan, zoo) or b.has(nan, zoo):
        return False
    if a.is_infinite or b.is_infinite:
        return bool(a == b)
    if not (a.is_number and b.is_number):
        return None
    if isinstance(a, Rational) and isinstance(b, Rational):
        return bool(a == b)
    is_decimal = a.has(Float) or b.has(Float)
    left, right = a.evalf(_EXACT_DIGITS), b.evalf(_EXACT_DIGITS)
    if left.has(nan, zoo) or right.has(nan, zoo):
        return False
    largest = max(abs(left), abs(right))
    return bool(abs(left - right) <= (tolerance if is_decimal else 1e-20) * largest)


def _differ_at_points(a: Any, b: Any) -> bool:
    """Whether two expressions in the same letters have clearly different values: then sympy need not try."""
    from sympy import Expr, Rational

    if not (isinstance(a, Expr) and isinstance(b, Expr)):
        return False
    letters = sorted(a.free_symbols | b.free_symbols, key=str)
    if not letters or len(letters) > 8:
        return False
    point = {letter: Rational(7 * index + 13, 11 + 2 * index) for index, letter in enumerate(letters)}
    try:
        left, right = complex(a.subs(point).evalf(15)), complex(b.subs(point).evalf(15))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, AttributeError):
        return False
    if left != left or right != right:
        return False
    return abs(left - right) > 1e-6 * max(abs(left), abs(right), 1e-300)
