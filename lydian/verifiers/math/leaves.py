"""Two answers without parts: text, times, ratios, bases, labelled values, quantities with units, and the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from lydian.verifiers.math.expressions import are_equal, has_relation
from lydian.verifiers.math.notation import as_latex, plain_text, tidy
from lydian.verifiers.math.policy import Policy
from lydian.verifiers.math.units import Unit, are_comparable, split_unit
from lydian.verifiers.numbers import are_close, parse_number

_BASE = re.compile(
    r"^\(?\s*(?:\\text\s*\{)?\s*([0-9A-Fa-f]+)\}?\s*\)?\s*_\s*(?:\{\s*(?:\\text\s*\{)?\s*(\w+)\s*\}?\s*\}|(\d+))$"
)
_BASE_NAMES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_TIME = re.compile(r"^(\d{1,2}):([0-5]\d)\s*(?:([ap])\.?\s*m\.?)?$", re.IGNORECASE)
_RATIO = re.compile(r"^\d+(?:\.\d+)?(?:\s*(?::|to)\s*\d+(?:\.\d+)?)+$")
_OPAQUE = re.compile(
    r"\\ldots(?![a-zA-Z])|\d\s*:\s*\d|\d+/\d+/\d+"
    r"|\\(?:angle|triangle|overline|vec|overrightarrow|equiv|wedge|vee|neg|Rightarrow)(?![a-zA-Z])"
)
_CHOICE = re.compile(r"^\(?\s*([A-J])\s*(?:\)|[.:](?=\s|$)|$)(.*)$", re.DOTALL)
_LABEL = re.compile(
    r"^(?:\\?[a-zA-Z]+'?(?:\s*_\s*(?:\w|\{[^{}]*\}))?(?:\s*\([a-zA-Z0-9, ]*\))?|\\(?:text|mathrm)\s*\{[^{}]*\}|"
    r"\\(?:angle|triangle|overline|vec|hat|bar|mathbf)\s*\{?[a-zA-Z ]+\}?|m\s*\\angle\s*\{?[A-Z]+\}?|\|[A-Za-z]+\|)$"
)
_WORDS = re.compile(r"(?<![\\a-zA-Z])[^\W\d_]{2,}(?![a-zA-Z(])")
_KNOWN_WORDS = frozenset(
    "sqrt sin cos tan cot sec csc log ln exp pi inf max min gcd lcm det mod arcsin arccos arctan".split()  # noqa: SIM905
)
_PERCENT = re.compile(
    r"\s*(?:\\?%|(?:\\(?:text|mathrm|mbox)\s*\{)?\s*(?:percent(?:age)?|per cent|pct)\s*\}?)$", re.IGNORECASE
)
_SINE = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """`x = 5`: the label and the value."""

    label: str
    value: str


def same_text(a: str, b: str) -> bool:
    """Whether two answers are written alike, but for blanks, braces, \\text, and the case of words.

    >>> same_text(r"\\text{Yes}", "yes"), same_text("x", "X"), same_text("1 2", "12")
    (True, False, False)
    """
    return a == b or _folded(a) == _folded(b)


def split_label(text: str) -> Labelled | None:
    """The label and the value of an equation such as `x = 5`, `5 = x` or `S = 3 + 4 = 7`, or None.

    >>> split_label("f(x) = x^2").value
    'x^2'
    """
    parts = [part.strip() for part in re.split(r"(?<![<>!\\])=", text)]
    if len(parts) < 2 or not all(parts) or any(has_relation(part) for part in parts):
        return None
    if _LABEL.match(parts[0]):
        return Labelled(label=_folded(parts[0]), value=parts[-1])
    if (
        len(parts) == 2
        and _LABEL.match(parts[1])
        and not _LABEL.match(parts[0])
        and not re.search(r"[a-zA-Z]", parts[0])
    ):
        return Labelled(label=_folded(parts[1]), value=parts[0])
    return None


def compare_leaves(a: str, b: str, policy: Policy, *, is_percent_asked: bool) -> tuple[bool, str]:
    """Whether two leaves are equal, and why. Raises TooLarge, MemoryError or RecursionError."""
    if same_text(a, b):
        return True, "the same text"
    labels = [split_label(side) for side in (a, b)]
    if policy.labels == "required" and bool(labels[0]) != bool(labels[1]):
        return False, "a label is missing"
    if policy.labels == "optional" and any(labels):
        if labels[0] and labels[1] and labels[0].label == labels[1].label:
            return compare_leaves(
                tidy(labels[0].value), tidy(labels[1].value), policy, is_percent_asked=is_percent_asked
            )
        lone = labels[0] or labels[1]
        other = b if labels[0] else a
        if lone and not all(labels) and not has_relation(other):
            return compare_leaves(tidy(lone.value), other, policy, is_percent_asked=is_percent_asked)
    for rule in (_compare_bases, _compare_times_and_ratios, _compare_texts):
        known = rule(a, b, policy)
        if known is not None:
            return known
    return _compare_quantities(a, b, policy, is_percent_asked)


def _folded(text: str) -> str:
    text = re.sub(r"(?<=\d)\s+(?=\d)", "·", plain_text(text))
    text = re.sub(r"\\[a-zA-Z]+", r"\g<0>·", text)
    text = re.sub(r"\s+", "", text).rstrip(".")
    text = re.sub(r"\{(\w)\}", r"\1", text)
    if "\\" in text:
        return text.replace("·", " ")
    return re.sub(r"[^\W\d_]{2,}", lambda match: match[0].casefold(), text).replace("·", " ")


def _compare_bases(a: str, b: str, policy: Policy) -> tuple[bool, str] | None:
    found = [_BASE.match(side) for side in (a, b)]
    if not any(found):
        return None
    digits, bases = [], []
    for match, side in zip(found, (a, b), strict=True):
        if match is None:
            digits.append(side.replace(" ", "").upper())
            continue
        name = match[2] or match[3]
        base = int(name) if name.isdigit() else _BASE_NAMES.get(name.lower())
        if base is None:
            return None  # a letter with an index, such as a_n
        digits.append(match[1].upper())
        bases.append(base)
    if policy.base == "value":
        values = [_in_base(digit, base) for digit, base in zip(digits, [*bases, 10], strict=False)]
        if len(bases) == 1 and found[0] is None:
            values = [_in_base(digits[0], 10), _in_base(digits[1], bases[0])]
        return values[0] is not None and values[0] == values[1], "compared by value"
    stripped = [digit.lstrip("0") for digit in digits]
    return stripped[0] == stripped[1] and len(set(bases)) == 1, "compared digits and base"


def _in_base(digits: str, base: int) -> int | None:
    try:
        return int(digits, base)
    except ValueError:
        return None


def _compare_times_and_ratios(a: str, b: str, policy: Policy) -> tuple[bool, str] | None:
    texts = [re.sub(r"\s+", " ", plain_text(side)).strip() for side in (a, b)]
    times = [_TIME.match(text) for text in texts]
    if times[0] and times[1]:
        halves = {match[3].lower() for match in times if match and match[3]}
        same = [(int(match[1]), int(match[2])) for match in times if match]
        return same[0] == same[1] and len(halves) < 2, "compared as times"
    ratios = [re.split(r"\s*(?::|to)\s*", text) if _RATIO.match(text) else None for text in texts]
    if not any(ratios):
        return None
    if ratios[0] and ratios[1]:
        parts = [[Fraction(part) for part in ratio] for ratio in ratios if ratio]
        cross = len(parts[0]) == len(parts[1]) and all(
            x * parts[1][0] == y * parts[0][0] for x, y in zip(*parts, strict=True)
        )
        return cross and bool(parts[0][0] or parts[0] == parts[1]), "compared as ratios"
    ratio, other = (ratios[0], texts[1]) if ratios[0] else (ratios[1], texts[0])
    number = parse_number(other)
    if ratio is None or len(ratio) != 2 or number is None or any(times) or not re.search(r"/|frac", other):
        return False, "a ratio and something else"
    return Fraction(ratio[0]) == (number.value or 0) * Fraction(ratio[1]), "a ratio and a fraction"


def _compare_texts(a: str, b: str, policy: Policy) -> tuple[bool, str] | None:
    """Answers in words, choices, and notation that is compared as it stands."""
    if _OPAQUE.search(a) or _OPAQUE.search(b):
        return False, "compared as text"
    choices = [_CHOICE.match(plain_text(side).strip()) for side in (a, b)]
    if choices[0] and choices[1] and (not choices[0][2].strip() or not choices[1][2].strip()):
        return choices[0][1] == choices[1][1], "compared as choices"
    wordy = [_is_text(side) for side in (a, b)]
    if any(wordy):
        return False, "compared as text"
    return None


def _is_text(text: str) -> bool:
    """Whether this is words rather than mathematics, or a number with its unit."""
    value, unit = split_unit(text)
    rest = _PERCENT.sub("", value if unit else text)
    if unit and unit.is_known:
        return False
    words = _WORDS.findall(re.sub(r"\\(?:begin|end)\s*\{\w+\}", " ", plain_text(rest)))
    return any(_is_word(word) for word in words)


def _is_word(word: str) -> bool:
    """Whether letters side by side are a word rather than a product of variables."""
    if word.lower() in _KNOWN_WORDS:
        return False
    if len(word) == 2:
        return word.lower() in ("no", "up", "on", "he", "it", "is") or not word.isascii()
    return not (len(word) == 3 and set(word) <= set("abcxyzpqr"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    text: str
    value: Fraction | None
    unit: Unit | None
    is_percent: bool
    is_decimal: bool


def _read_quantity(text: str, policy: Policy) -> _Quantity:
    percent = _PERCENT.search(text)
    body = text[: percent.start()] if percent else text
    body, unit = split_unit(body) if not percent else (body, None)
    body = tidy(body)
    if _SINE.search(body):
        body = _DEGREES.sub(r"(\\frac{\1\\pi}{180})", body)
    body = re.sub(r"(?<=[\d.])j(?![a-zA-Z])", "i", body)
    body = body.replace(r"\infty", r"\infty ").replace("+\\infty", r"\infty") if body.startswith("+") else body
    number = parse_number(_commas(body, policy)) if not percent else parse_number(_commas(body, policy).rstrip("\\"))
    value = number.amount if number else None
    return _Quantity(text=body, value=value, unit=unit, is_percent=bool(percent), is_decimal="." in body or "," in body)


def _commas(text: str, policy: Policy) -> str:
    """The text with the commas between digits resolved as the policy says."""
    if policy.commas == "decimal" and re.fullmatch(r"-?\d+(?:\.\d{3})*,\d+", text):
        return text.replace(".", "").replace(",", ".")
    if policy.commas == "thousands" and re.fullmatch(r"-?\d+,\d+", text) and not re.fullmatch(r"-?\d{1,3},\d{3}", text):
        return "no number"
    return text


def _compare_quantities(a_text: str, b_text: str, policy: Policy, is_percent_asked: bool) -> tuple[bool, str]:
    a, b = _read_quantity(a_text, policy), _read_quantity(b_text, policy)
    scale_a = scale_b = Fraction(1)
    if policy.units != "ignored" and (a.unit or b.unit):
        if a.unit and b.unit:
            if not are_comparable(a.unit, b.unit):
                return False, "different units"
            if a.unit.exponents == b.unit.exponents and a.unit.factor != b.unit.factor:
                scale_a, scale_b = a.unit.factor, b.unit.factor
        elif policy.units == "required" and (a.unit or b.unit) and (a.unit or b.unit).exponents:  # type: ignore[union-attr]
            return False, "a unit is missing"
    a_percent = scale_a / 100 if a.is_percent else scale_a
    b_percent = scale_b / 100 if b.is_percent else scale_b
    result = _compare_values(a, b, a_percent, b_percent, policy)
    is_bare = policy.percent == "either" or (policy.percent == "asked" and is_percent_asked)
    if not result[0] and a.is_percent != b.is_percent and is_bare:
        result = _compare_values(a, b, Fraction(1), Fraction(1), policy)
    if not result[0] and bool(a.unit) != bool(b.unit):
        unit = a.unit or b.unit
        if unit and unit.exponents == (("angle", 1),) and r"\pi" in (b.text if a.unit else a.text):
            a_pi = rf"\frac{{\pi}}{{180}} \cdot ({a.text})" if a.unit else a.text
            b_pi = rf"\frac{{\pi}}{{180}} \cdot ({b.text})" if b.unit else b.text
            return are_equal(a_pi, b_pi, tolerance=policy.tolerance, compare_sets=False)
    return result


def _compare_values(
    a: _Quantity, b: _Quantity, a_scale: Fraction, b_scale: Fraction, policy: Policy
) -> tuple[bool, str]:
    if a.value is not None and b.value is not None:
        tolerance = policy.tolerance if a.is_decimal or b.is_decimal else 0.0
        return are_close(a.value * a_scale, b.value * b_scale, relative_tolerance=tolerance), "compared as numbers"
    texts = []
    for side, scale in ((a, a_scale), (b, b_scale)):
        plain = as_latex(side.value) if side.value is not None and not side.is_decimal else side.text
        texts.append(plain if scale == 1 else rf"\frac{{{scale.numerator}}}{{{scale.denominator}}} \cdot ({plain})")
    if a_scale == b_scale == 1 and same_text(*texts):
        return True, "the same text"
    first, second = sorted(texts)
    return are_equal(first, second, tolerance=policy.tolerance, compare_sets=policy.relations == "as_sets")
