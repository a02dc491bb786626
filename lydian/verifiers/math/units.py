"""Units of answers: `5 cm`, `\\$5`, `90^\\circ`, `36 km/h`, `3 apples`. What they measure, and how much of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_TABLE = """
length 1000 km kilometer kilometre 千米 公里 | length 1 m meter metre 米 | length 1/10 dm decimeter decimetre 分米
length 1/100 cm centimeter centimetre 厘米 | length 1/1000 mm millimeter millimetre 毫米
length 254/10000 in inch inche | length 3048/10000 ft foot feet | length 9144/10000 yd yard
length 1609344/1000 mi mile
length 1/1000000 micrometer micron | length 1/1000000000 nm nanometer
mass 1000000 tonne 吨 | mass 1000 kg kilogram 千克 公斤 | mass 1 g gram 克 | mass 1/1000 mg milligram 毫克
mass 45359237/100000 lb pound_mass | mass 45359237/1600000 oz ounce
time 1 s sec second 秒 | time 60 min minute 分钟 分 | time 3600 h hr hour 小时 | time 86400 day 天 日
time 604800 week wk 周 星期 | time 1/1000 ms millisecond | month 1 month 月 个月 | month 12 year yr 年
volume 1 l liter litre 升 | volume 1/1000 ml milliliter millilitre 毫升 | volume 1/1000 cc | gallon 1 gallon gal
angle 1 ° degree deg 度 | angle 1/60 arcminute | radian 1 radian rad
temperature 1 °c celsius | fahrenheit 1 °f fahrenheit | kelvin 1 k kelvin
dollar 1 $ dollar usd us$ 美元 | dollar 1/100 cent ¢ | euro 1 € euro eur | pound 1 £ pound gbp 英镑
yuan 1 元 yuan rmb cny
yen 1 yen jpy 日元 | rupee 1 ₹ rupee inr | yuan_or_yen 1 ¥
joule 1 j joule | joule 1000 kj | watt 1 w watt | watt 1000 kw | newton 1 n newton | pascal 1 pa pascal | volt 1 v volt
hertz 1 hz hertz | hertz 1000 khz | ampere 1 ampere amp | ohm 1 ohm
"""
_UNITS = {
    name: (parts[0], Fraction(parts[1]))
    for entry in re.split(r"[|\n]", _TABLE.strip())
    for parts in [entry.split()]
    for name in parts[2:]
}
_SHORTHAND = {
    "mph": "mile/hour", "kph": "km/h", "kmh": "km/h", "fps": "feet/second", "sqcm": "cm^2", "sqm": "m^2",
    "平方厘米": "cm^2", "平方米": "m^2", "立方厘米": "cm^3", "立方米": "m^3", "平方千米": "km^2", "平方分米": "dm^2",
    "升/分钟": "l/min", "hectare": "hm^2", "rpm": "revolution/min",
}  # fmt: skip
_UNITS["hm"] = ("length", Fraction(100))
_GENERIC = frozenset(("unit", "units", "un"))
_MARK = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mbox|mathrm|mathbf|operatorname|rm)\s*\{([^{}]*)\}")
_CURRENCY = re.compile(r"^(-?)\s*(?:(?:US|A|C)?\\?\$|[€£¥₹])\s*(?=[\d.(\\-])")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))")
_EXPONENT = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
_WORD = r"[^\W\d_]+\.?|[°€£¥₹¢$]"
_TAIL = re.compile(
    rf"^(?P<value>.*?(?:[\d)}}\]!]|\\pi|\\infty|[a-z]))(?P<unit>\s*(?:«[^«»]*»{_EXPONENT}|\s*°\s?[CF]?\b|°)"
    rf"(?:\s*(?:/|\\cdot|·|\*|per\b)?\s*(?:«[^«»]*»|{_WORD}){_EXPONENT})*)\s*$",
    re.DOTALL,
)
_BARE_TAIL = re.compile(
    rf"^(?P<value>.*?(?:[\d)}}\]!]|\\pi))(?P<unit>\s*(?:{_WORD}){_EXPONENT}"
    rf"(?:\s*(?:/|\\cdot|·|\*|\s)\s*(?:{_WORD}){_EXPONENT})*)\s*$",
    re.DOTALL,
)
_NO_UNIT = frozenset(
    [
        "and",
        "or",
        "to",
        "by",
        "mod",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "log",
        "ln",
        "exp",
        "pi",
        "inf",
        "infinity",
        "if",
        "for",
        "when",
        "where",
        "is",
        "not",
        "am",
        "pm",
        "i",
        "j",
        "e",
        "x",
        "y",
        "z",
        "a",
        "b",
        "n",
        "k",
        "t",
        "r",
        "p",
        "q",
        "c",
        "d",
        "f",
        "u",
        "o",
        "choose",
        "over",
        "th",
        "st",
        "nd",
        "rd",
        "million",
        "billion",
        "thousand",
        "trillion",
        "hundred",
    ]
)
_ALONE = frozenset("mgshlLJWNV")  # single letters that are units only after a number and a blank


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """factor  how many of the standard units; exponents  what is measured, such as (("length", 1), ("time", -1))"""

    factor: Fraction
    exponents: tuple[tuple[str, int], ...]

    @property
    def is_known(self) -> bool:
        return not any(name.startswith("?") for name, _ in self.exponents)


def split_unit(text: str) -> tuple[str, Unit | None]:
    """The text without its unit, and the unit; None if it has none.

    >>> value, unit = split_unit(r"36\\text{ km}/\\text{h}")
    >>> (value, str(unit.factor))
    ('36', '5/18')
    >>> split_unit("2x")
    ('2x', None)
    """
    currency = _CURRENCY.match(text)
    if currency:
        rest = text[currency.end() :]
        value, further = split_unit(rest) if "{" in rest else (rest, None)
        symbol = currency[0].strip().lstrip("-USAC\\ ").strip() or "$"
        return currency[1] + (value if further else rest), _read(symbol)
    is_angle = re.search(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])", text) is not None
    if is_angle:
        return text, None
    marked = _MARK.sub(lambda match: f"«{match[1].strip()}»" if match[1].strip() else " ", _DEGREE.sub("°", text))
    marked = marked.replace("\\ ", " ").replace("\\,", " ").replace("\\%", "%").strip()
    found = _TAIL.match(marked)
    if found and re.fullmatch(r"[a-z]", found["value"]) is None and _is_value(found["value"]):
        unit = _read(found["unit"])
        return (found["value"].strip(), unit) if unit else (text, None)
    found = _BARE_TAIL.match(marked)
    if found and "«" not in marked and _is_bare_unit(found["unit"], found["value"]):
        unit = _read(found["unit"])
        return (found["value"].strip(), unit) if unit else (text, None)
    return text, None


def _is_value(value: str) -> bool:
    return "«" not in value and not re.search(r"(?<![\\a-zA-Z])[A-Za-z]{3,}", value)


def _is_bare_unit(unit: str, value: str) -> bool:
    """Whether words without \\text are a unit: `5 m`, `15 cm^2`, `3 apples`; not `2x`, `3 and`, `5 mod`."""
    words = re.findall(_WORD, unit)
    if not _is_value(value) or not re.fullmatch(r"[-+\d.,/\s{}\\a-z^()*!]+", value, re.DOTALL):
        return False
    if any(word.lower().rstrip(".") in _NO_UNIT for word in words):
        return False
    is_plain = re.fullmatch(r"[-+]?[\d.,/\s{}]+|.*(?:frac|sqrt|pi).*", value) is not None
    known = all(_lookup(word) is not None for word in words)
    if any(len(word) == 1 and word.isascii() and word.isalpha() for word in words):
        return (
            is_plain and known and (unit[0].isspace() or "/" in unit) and all(len(w) > 1 or w in _ALONE for w in words)
        )
    return known or (is_plain and all(len(word) >= 3 or not word.isascii() for word in words))


def _lookup(word: str) -> tuple[str, Fraction] | None:
    lowered = word.rstrip(".").lower()
    for name in (lowered, lowered.removesuffix("s")):
        if name in _UNITS:
            return _UNITS[name]
        if name in _SHORTHAND:
            return ("?", Fraction(1))
    return None


def _read(text: str) -> Unit | None:
    """The unit that the text names; unknown words measure themselves."""
    text = text.replace("«", " ").replace("»", " ").replace("\\cdot", " ").replace("·", " ").strip()
    text = re.sub(r"\bper\b", "/", text).strip("() ")
    text = re.sub(r"°\s*([CF])\b", lambda match: "°" + match[1].lower(), text)
    for name, meant in _SHORTHAND.items():
        text = re.sub(rf"(?<![^\W\d_]){re.escape(name)}(?![^\W\d_])", meant, text, flags=re.IGNORECASE)
    text = re.sub(r"\b(square|sq|cubic|cu)\.?\s+([^\W\d_]+)", _power_word, text, flags=re.IGNORECASE)
    text = re.sub(r"([^\W\d_]+)\s+(squared|cubed)\b", _power_after, text, flags=re.IGNORECASE)
    factor, exponents, sign = Fraction(1), dict[str, int](), 1
    for token in re.findall(rf"/|(?:°[cf]|{_WORD})(?:\s*\^\s*\{{?\s*-?\d\s*\}}?)?", text):
        if token == "/":
            sign = -1
            continue
        word, _, power = token.partition("^")
        exponent = sign * int(re.sub(r"[{}\s]", "", power) or "1")
        word = word.strip().rstrip(".").lower()
        if word in _GENERIC or word in ("the", "of", "a", "total"):
            continue
        kind, size = _lookup(word) or (f"?{word.removesuffix('s')}", Fraction(1))
        if kind == "volume":
            kind, size, exponent = "length", size / 1000, 3 * exponent
            factor *= size if exponent > 0 else 1 / size
        else:
            factor *= size**exponent
        exponents[kind] = exponents.get(kind, 0) + exponent
    if not exponents and not re.search(r"unit|un\b", text, re.IGNORECASE):
        return None
    return Unit(factor=factor, exponents=tuple(sorted((k, e) for k, e in exponents.items() if e)))


def _power_word(match: re.Match[str]) -> str:
    return f"{match[2]}^{2 if match[1].lower().startswith('s') else 3}"


def _power_after(match: re.Match[str]) -> str:
    return f"{match[1]}^{2 if match[2].lower() == 'squared' else 3}"


def are_comparable(a: Unit, b: Unit) -> bool:
    """Whether two units measure the same; words in different scripts and a bare `units` are given the benefit."""
    if a.exponents == b.exponents or not a.exponents or not b.exponents:
        return True
    kinds = [{name for name, _ in unit.exponents} for unit in (a, b)]
    if "yuan_or_yen" in kinds[0] | kinds[1]:
        return kinds[0] | kinds[1] <= {"yuan_or_yen", "yuan", "yen"}
    scripts = ["".join(sorted(kind)).isascii() for kind in kinds]
    return not (a.is_known and b.is_known) and scripts[0] != scripts[1]
