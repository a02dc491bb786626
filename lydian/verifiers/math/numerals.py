"""Numbers that are not written in digits: Chinese numerals, English number words, repeating decimals."""

from __future__ import annotations

import re
from fractions import Fraction

_DIGITS = {char: value for value, char in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2}
_SMALL = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
NUMERAL = r"[零〇一二两兩三四五六七八九十百千万萬亿億]"
"""One character of a Chinese numeral."""

_ONES = dict(
    zip(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ],
        range(20),
        strict=True,
    )
)
_TENS = dict(
    zip(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], range(20, 100, 10), strict=True)
)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}
_SCALED = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_SCALES)})s?", re.IGNORECASE)


def read_chinese(text: str) -> Fraction | None:
    """The value of a Chinese numeral, with digits in it or not, or None.

    >>> [str(read_chinese(text)) for text in ("一百二十三", "2万5千", "1.5亿", "三分之一", "百分之五十", "三角形")]
    ['123', '25000', '150000000', '1/3', '1/2', 'None']
    """
    if "分之" in text:
        bottom, _, top = text.partition("分之")
        a, b = read_chinese(top), Fraction(100) if bottom == "百" else read_chinese(bottom)
        return None if a is None or not b else a / b
    if len(text) > 40 or not re.fullmatch(rf"(?:{NUMERAL}|\d+(?:\.\d+)?)+", text):
        return None
    if re.fullmatch(r"[零〇一二三四五六七八九]{2,}", text):  # digit by digit, as years are read
        return Fraction(int("".join(str(_DIGITS[char]) for char in text)))
    total, section, pending = Fraction(0), Fraction(0), None
    for token in re.findall(r"\d+(?:\.\d+)?|.", text):
        if token in _SMALL:
            section, pending = section + (1 if pending is None else pending) * _SMALL[token], None
        elif token in _LARGE:
            section = section + (pending or 0)
            total, section, pending = (total + (section or 1)) * _LARGE[token], Fraction(0), None
            if token in "万萬" and total >= 10**12:  # 亿 came first: only what follows it is multiplied
                above, below = divmod(total, 10**12)
                total = above * 10**8 + below
        else:
            if pending:
                return None
            pending = Fraction(_DIGITS[token]) if token in _DIGITS else Fraction(token)
    return total + section + (pending or 0)


def read_words(text: str) -> Fraction | None:
    """The value of English number words, or of digits with a scale, or None.

    >>> [str(read_words(text)) for text in ("twenty-one", "two hundred and five", "2.5 million", "one half", "tense")]
    ['21', '205', '2500000', '1/2', 'None']
    """
    scaled = _SCALED.fullmatch(text.strip())
    if scaled:
        return Fraction(scaled[1]) * _SCALES[scaled[2].lower()]
    words = re.split(r"[\s-]+", text.strip().lower())
    if not words or len(words) > 12:
        return None
    part = words[-1].removesuffix("s") if words[-1] != "halves" else "half"
    if part in _PARTS and len(words) <= 2:
        top = _ONES.get(words[0], 1 if words[0] in ("a", part) else None) if len(words) == 2 else 1
        return Fraction(top, _PARTS[part]) if top and (len(words) == 2 or part in ("half", "quarter")) else None
    total, section = 0, None
    for index, word in enumerate(words):
        if word in _ONES or word in _TENS:
            section = (section or 0) + (_ONES.get(word) or _TENS.get(word) or 0)
        elif word == "hundred" and section:
            section *= 100
        elif word in _SCALES and section:
            total, section = total + section * _SCALES[word], 0
        elif not (word == "and" and 0 < index < len(words) - 1):
            return None
    return None if section is None else Fraction(total + section)


def repeating(whole: str, fixed: str, period: str) -> Fraction:
    r"""whole.fixed and then period for ever: 0.1\overline{6} is 1/6.

    >>> str(repeating("0", "1", "6"))
    '1/6'
    """
    bottom = 10 ** len(fixed) * (10 ** len(period) - 1)
    return int(whole or "0") + Fraction(int(fixed + period) - int(fixed or "0"), bottom)
