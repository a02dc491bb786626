"""Are two mathematical answers equal? Runs inside a worker process only: sympy may take any time and memory.

math-verify reads and compares; before it, what it is known to get wrong is decided here: text, bases, ratios, and
numbers, which are compared exactly (or to 12 digits where one is a decimal) and never with small values cut to zero.
"""

from __future__ import annotations

import logging
import re
from typing import Any

RELATIVE_TOLERANCE = 5e-12
"""Two numbers that agree to 12 significant digits differ by less than this."""

_WORD = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mbox|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}")
_BASE = re.compile(r"([0-9A-Z]+)_\{?(\d+)\}?")
_TEXT_ONLY = re.compile(r"\d+(?::\d+)+|.*(?:\\[lc]?dots|\.\.\.|\N{HORIZONTAL ELLIPSIS}).*", re.DOTALL)


def load_libraries() -> None:
    """Imports math-verify and sympy, and silences what they say about answers they cannot read."""
    import math_verify  # noqa: F401

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def compare(gold: str, prediction: str) -> tuple[bool, str]:
    """Whether the answers are equal, and one line that says why."""
    gold, prediction = tidy(gold), tidy(prediction)
    if _as_text(gold) == _as_text(prediction):
        return True, "the same text"
    if _TEXT_ONLY.fullmatch(gold) or _TEXT_ONLY.fullmatch(prediction):
        return False, "compared as text"
    bases = [_BASE.fullmatch(side) for side in (gold, prediction)]
    if any(bases):
        digits = [base[1] if base else side for base, side in zip(bases, (gold, prediction), strict=True)]
        written = {base[2] for base in bases if base}
        return digits[0] == digits[1] and len(written) == 1, "compared digits and base"
    parsed_gold, parsed = _parse(gold), _parse(prediction)
    if parsed_gold is None or parsed is None:
        return False, f"{'the gold answer' if parsed_gold is None else 'the answer'} cannot be read as mathematics"
    numbers = _compare_numbers(parsed_gold, parsed)
    if numbers is not None:
        return numbers, "compared as numbers"
    from math_verify import verify

    try:
        is_equal = verify(
            parsed_gold,
            parsed,
            float_rounding=11,
            timeout_seconds=None,
            allow_set_relation_comp=True,
            raise_on_error=True,
        )
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001  sympy met something it has no answer for; that answer was not shown to be equal
        return False, f"cannot be compared: {type(error).__name__}"
    return is_equal, "compared by sympy"


def tidy(answer: str) -> str:
    """The answer without what carries no meaning: delimiters, sizes, styles, spaces, a final full stop."""
    answer = answer.strip().rstrip(".").strip()
    answer = re.sub(r"\\(?:left|right|displaystyle|[,;!]|quad|qquad)(?![a-zA-Z])", " ", answer)
    answer = re.sub(r"\\[dt]frac", r"\\frac", answer)
    answer = re.sub(r"\\mathrm\s*\{\s*([a-zA-Z])\s*\}", r"\1", answer)
    answer = re.sub(r"([\d.}])\s*([\u3400-\u9fff]+)$", r"\1\\text{\2}", answer)  # a unit without \text
    answer = answer.replace("\N{DEGREE SIGN}", r"^\circ").replace("~", " ")
    return re.sub(r"\\?\$|\\[()\[\]]", "", answer).strip()


def _as_text(answer: str) -> str:
    return re.sub(r"[\s{}]+", "", _WORD.sub(r"\1", answer)).casefold()


def _parse(answer: str) -> Any:
    from math_verify import LatexExtractionConfig, parse

    latex = [LatexExtractionConfig()]
    try:
        parsed = parse(f"${answer}$", latex, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001  not LaTeX that anybody can read
        return None
    return parsed[0] if parsed else None


def _compare_numbers(a: Any, b: Any) -> bool | None:
    """Equality of two constants, or None if one of them is something else."""
    from sympy import Basic, Float, Rational

    if not all(isinstance(x, Basic) and getattr(x, "is_number", False) for x in (a, b)):
        return None
    a, b = a.doit(), b.doit()
    if a.is_finite is False or b.is_finite is False or not (a.is_number and b.is_number):
        return None
    if isinstance(a, Rational) and isinstance(b, Rational):
        return bool(a == b)
    is_decimal = a.has(Float) or b.has(Float)
    left, right = a.evalf(30), b.evalf(30)
    largest = max(abs(left), abs(right))
    return bool(abs(left - right) <= (RELATIVE_TOLERANCE if is_decimal else 1e-20) * largest)
