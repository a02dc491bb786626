"""Numbers as people write them, read exactly.

Read: sign, currency sign, digits with thousands separators (`1,000`, `1 000`, `1{,}000`, `1.234,56`), decimals (`2.50`,
`.5`; a comma before one, two, or more than three digits is a decimal comma), powers of ten (`1.5e3`), fractions (`5/2`,
`\\frac{5}{2}`), mixed numbers (`1 1/2`), percent (`50%`, `50 percent`),
scales (`2.5 million`, `3万`). One token but no number: ratios and times
(`12:30`), dates (`1/2/2020`), lists (`1,2,3`), powers (`10^5`), anything longer than `MAX_CHARACTERS`. Digits inside
words, ordinals, indices and exponents are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 100
"""A longer token is no number: reading it could cost any amount of time."""

_SEPARATOR = r"(?:,|\{,\}|\\[,!]|,\\!| )"
_GROUPED = rf"\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?![\d,]\d)(?:\.\d+)?"
_GROUPED_BY_POINTS = r"\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}(?!\d)"
_DECIMAL_COMMA = r"\d+,(?:\d{1,2}|\d{4,})(?!\d)"
_DECIMAL = r"\d+(?:\.\d+)?(?:[eE][-+]?\d{1,2}(?!\d))?|\.\d+"
_UNSIGNED = rf"(?:{_GROUPED}|{_GROUPED_BY_POINTS}|{_DECIMAL_COMMA}|{_DECIMAL})"
_LATEX_FRACTION = r"\\[dt]?frac\s*(?:\{\s*\d+\s*\}\s*\{\s*\d+\s*\}|\d\s*\d)"
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALES |= {"百": 100, "千": 1000, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_SCALE = r"\s?(?:(?:thousand|million|billion|trillion)\b|[百万萬亿億](?!分)|千(?![克米瓦卡]))"
_OPAQUE = r"\d+(?:\s?:\s?\d+)+|\d+(?:/\d+){2,}|\d{1,2}(?:,\d{1,2}){2,}|\d[\d.]{0,30}\s?(?:\^|\*\*)\s?\{?-?\d+\}?"
_TOKEN = re.compile(
    r"(?P<sign>(?<![\w)}])[-+](?:\\?\$|[€£¥])?)?(?<![A-Za-z0-9_^])(?<![_^]\{)(?<!\d\.)"
    rf"(?:(?P<opaque>{_OPAQUE})"
    rf"|(?P<whole>\d+)(?:\s+(?P<slash>\d+/\d+)|\s*(?P<latex>{_LATEX_FRACTION}))"
    rf"|(?P<alone>{_LATEX_FRACTION})"
    rf"|(?P<top>{_UNSIGNED})(?:\s?/\s?(?P<bottom>{_UNSIGNED}))?)"
    rf"(?!\d|(?:st|nd|rd|th)\b)(?P<scale>{_SCALE})?(?P<percent>\s?\\?%|\s?(?:percent(?:age)?|per\s?cent|pct)\b)?"
)

_PERCENT_ASKED = re.compile(r"(?<![\d.])(?<!\d )(?:percent|per cent|%)", re.IGNORECASE)  # unlike "at 20% off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A token that looks like a number.

    text        as written, without currency signs and thousands separators
    value       exact, percent not yet divided by 100; None for a token that is no number
    is_percent  whether a percent sign or word follows
    start, end  where it stands
    """

    text: str
    value: Fraction | None
    is_percent: bool
    start: int
    end: int

    @property
    def amount(self) -> Fraction | None:
        """The value, with percent divided out: 50% is 1/2."""
        return self.value / 100 if self.value is not None and self.is_percent else self.value


def find_numbers(text: str) -> list[Number]:
    """All tokens that look like numbers, in order.

    >>> [(number.text, str(number.value)) for number in find_numbers("-$1,250.50 for 1 1/2 boxes by 12:30")]
    [('-1250.50', '-2501/2'), ('1 1/2', '3/2'), ('12:30', 'None')]
    """
    return [_read(match) for match in _TOKEN.finditer(text)]


def parse_number(text: str) -> Number | None:
    """The number that the whole text is (a currency sign, dollars around it and a final full stop aside), or None.

    >>> parse_number("$1{,}000.").text
    '1000'
    """
    stripped = re.sub(r"^(?:\\?\$|[€£¥])|(?<!\\)\$$|\.$", "", text.strip()).strip()
    if len(stripped) > MAX_CHARACTERS:
        return None
    match = _TOKEN.fullmatch(stripped)
    return _read(match) if match and not match["opaque"] else None


def are_close(a: Fraction, b: Fraction, *, relative_tolerance: float) -> bool:
    """|a − b| ≤ tolerance · max(|a|, |b|), exactly; two integers must be equal.

    >>> are_close(Fraction(10**11), Fraction(10**11 - 1), relative_tolerance=1e-9)
    False
    """
    if a == b or (a.denominator == b.denominator == 1):
        return a == b
    return abs(a - b) <= Fraction(relative_tolerance) * max(abs(a), abs(b))


def are_equal(number: Number, gold: Number, *, question: str, relative_tolerance: float) -> bool:
    """Whether two numbers agree: 50% is 1/2, and 50 too if the last sentence of the question asks for a percentage.

    Raises ValueError if one of them has no value.
    """
    if number.amount is None or gold.amount is None or number.value is None or gold.value is None:
        raise ValueError(f"{number.text} or {gold.text} is no number")
    if are_close(number.amount, gold.amount, relative_tolerance=relative_tolerance):
        return True
    if number.is_percent == gold.is_percent or not asks_for_percent(question):
        return False
    return are_close(number.value, gold.value, relative_tolerance=relative_tolerance)


def asks_for_percent(question: str) -> bool:
    """Whether the last sentence of the question asks for a percentage.

    >>> asks_for_percent("He pays 20% less. What percent is left?"), asks_for_percent("What is the price at 20% off?")
    (True, False)
    """
    asked = re.split(r"(?<=[.!?])\s+", question.strip())[-1]
    return _PERCENT_ASKED.search(asked) is not None


def _read(match: re.Match[str]) -> Number:
    text, value = match[0], None
    if not match["opaque"] and len(text) <= MAX_CHARACTERS:
        sign = -1 if (match["sign"] or "").startswith("-") else 1
        if match["whole"]:
            text = f"{match['whole']} {match['slash'] or match['latex']}"
            fraction = _fraction(match["slash"] or match["latex"])
            value = None if fraction is None else int(match["whole"]) + fraction
        elif match["alone"]:
            text, value = match["alone"], _fraction(match["alone"])
        else:
            text, value = _plain(match["top"])
            if match["bottom"]:
                bottom_text, bottom = _plain(match["bottom"])
                text, value = f"{text}/{bottom_text}", value / bottom if bottom else None
        text = f"-{text}" if sign < 0 else text
        if match["scale"] and value is not None:
            text, value = text + match["scale"], value * _SCALES[match["scale"].strip()]
        value = None if value is None else sign * value
        text = f"{text}%" if match["percent"] else text
    return Number(text=text, value=value, is_percent=bool(match["percent"]), start=match.start(), end=match.end())


def _fraction(text: str) -> Fraction | None:
    r"""`5/2`, `\frac{5}{2}` or `\frac52`; None where it divides by zero."""
    digits = re.findall(r"\d+", text)
    top, bottom = digits if len(digits) == 2 else digits[0]
    return Fraction(int(top), int(bottom)) if int(bottom) else None


def _plain(text: str) -> tuple[str, Fraction]:
    if re.fullmatch(_GROUPED, text):
        text = re.sub(_SEPARATOR, "", text)
    elif re.fullmatch(_GROUPED_BY_POINTS, text):
        text = text.replace(".", "").replace(",", ".")
    elif "," in text:
        return text, Fraction(text.replace(",", "."))
    return text, Fraction(text)
