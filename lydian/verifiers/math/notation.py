"""One notation for answers: signs of all kinds become LaTeX, and what carries no meaning goes."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from lydian.verifiers.math.numerals import NUMERAL, read_chinese, read_words, repeating
from lydian.verifiers.reading import clean

_SIGNS = {
    "√": r"\sqrt ", "π": r"\pi ", "∞": r"\infty ", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "÷": "/", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ",
    "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}",
    "ℚ": r"\mathbb{Q}", "ℕ": r"\mathbb{N}", "ℂ": r"\mathbb{C}", "°": r"^\circ ", "º": r"^\circ ", "∘": r"^\circ ",
    "−": "-", "–": "-", "—": "-", "⁄": "/", "∕": "/", "′": "'", "’": "'", "∠": r"\angle ", "△": r"\triangle ",
    "…": r"\ldots ", "⋯": r"\ldots ", "〈": r"\langle ", "〉": r"\rangle ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "∧": r"\wedge ", "∨": r"\vee ", "¬": r"\neg ", "→": r"\to ", "、": ",", "，": ",", "；": ";", "：": ":", "∶": ":",
    "（": "(", "）": ")", "【": "[", "】": "]", "｛": r"\{", "｝": r"\}", "％": r"\%", "٫": ".", "٬": ",", "٪": r"\%",
    "“": '"', "”": '"', "。": ".",
}  # fmt: skip
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi chi psi omega".split()  # noqa: SIM905
)
_SIGNS |= {
    unicodedata.lookup(f"GREEK SMALL LETTER {name.replace('lambda', 'lamda').upper()}"): f"\\{name} " for name in _GREEK
}
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ"
_SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉₊₋"
_SUPERSCRIPT = re.compile(f"[{_SUPERSCRIPTS}]+")
_SUBSCRIPT = re.compile(f"[{_SUBSCRIPTS}]+")
_RENAMED = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r",\s*\\[!,]\s*(?=\d{3})", ","),
        (r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle)(?![a-zA-Z])\.?", " "),
        (r"\\(?:[lL]arge|LARGE|huge|small|tiny|limits|nolimits)(?![a-zA-Z])", " "),
        (r"(?<!\\)\\(?:quad|qquad|thinspace|enspace|,|;|!|:|>)(?![a-zA-Z])", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\\leq(?:slant)?(?![a-zA-Z])|<=|=<", r"\\le "),
        (r"\\geq(?:slant)?(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\neq(?![a-zA-Z])|!=|<>", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:varnothing|O)(?![a-zA-Z])", r"\\emptyset "),
        (r"\\(?:[lc]dots|dots[bcmio]?)(?![a-zA-Z])|\.\.\.", r"\\ldots "),
        (r"\\(?:lbrace)(?![a-zA-Z])", r"\\{"),
        (r"\\(?:rbrace)(?![a-zA-Z])", r"\\}"),
        (r"\\(?:lvert|rvert|vert)(?![a-zA-Z])", "|"),
        (r"\\land(?![a-zA-Z])", r"\\wedge "),
        (r"\\lor(?![a-zA-Z])", r"\\vee "),
        (r"\\(?:lnot)(?![a-zA-Z])", r"\\neg "),
        (r"\\colon(?![a-zA-Z])", ":"),
        (r"\\div(?![a-zA-Z])", "/"),
        (r"\\log_\{?e\}?(?![a-zA-Z])", r"\\ln "),
        (r"\\lg(?![a-zA-Z])", r"\\log_{10} "),
        (r"\\lb(?![a-zA-Z])", r"\\log_{2} "),
        (r"\\(?:bmod|mod|pmod)(?![a-zA-Z])", r"\\mod "),
        (r"\\(?:var)(epsilon|phi|theta|rho|sigma)(?![a-zA-Z])", r"\\\1"),
        (r"\{?\s*(\w+)\s*\\choose\s*(\w+)\s*\}?", r"\\binom{\1}{\2}"),
        (r"\\color\s*\{\w*\}|\\(?:underline|ensuremath|phantom)(?=\{)", " "),
        (r"\\textcolor\s*\{\w*\}", " "),
        (r"\\mathbb\s+([A-Z])", r"\\mathbb{\1}"),
        (r"\\mathrm\s*\{\s*([a-zA-Z])\s*\}", r"\1"),
        (r"\\(?:mathbf|boldsymbol|bm|textbf)\s*\{\s*([-\d.,]+)\s*\}", r"\1"),
        (r"(?<=\d)\s*(?:x|X)\s*(?=10\s*\^)", r"\\times "),
        (r"\*\*", "^"),
        (r"(?<![a-zA-Z\\])sqrt(?=\s*[({\d])", r"\\sqrt"),
        (r"(?<![a-zA-Z\\])(?:infinity|infty|inf|oo)(?![a-zA-Z])", r"\\infty "),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<=\d)_(?=\d{3}(?:\D|$))", ""),
        (r"(?<=\d)'(?=\d{3}(?:\D|$))", ""),
        (r"(?<=\d)\s?[eE]\s?(\+?|-)(?=\d)([0-9]{1,3})(?![\d.a-zA-Z])", r"\\times 10^{\1\2}"),
        (r"10\^\{\+", "10^{"),
        (r"~|(?<!\\)\\ ", " "),
    )
]  # fmt: skip
_PERIOD = re.compile(
    r"(?<![\d.])(\d*)\.(\d*)(?:\\(?:overline|bar|dot|overset\s*\{\s*\\?\.\s*\})\s*(?:\{(\d+)\}|(\d))|\((\d+)\))(?![\d({\\])"
)
_DOTS = re.compile(
    r"(?<![\d.])(\d*)\.(\d*?)(\d{1,6}?)\3{2,}\s*\\ldots\s*$|(?<![\d.])(\d*)\.(\d*?)(\d{2,6})\6\s*\\ldots\s*$"
)
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf|tt)?|mbox|mathrm|mathbf|mathit|mathsf|operatorname|bf|rm)\s*\{([^{}]*)\}"
)
_ORDINAL = re.compile(r"^(\d+)\s*(?:\^\s*)?\{?\s*(?:\\(?:text|mathrm|rm)\s*\{)?\s*(?:st|nd|rd|th)\s*\}*$")
_CHINESE = re.compile(rf"^((?:{NUMERAL}|\d+(?:\.\d+)?|分之)+)(.{{0,4}})$")
_MEANINGS = {
    "all real numbers": r"\mathbb{R}", "all reals": r"\mathbb{R}", "real numbers": r"\mathbb{R}",
    "the real numbers": r"\mathbb{R}",
    "all real": r"\mathbb{R}", "no solution": r"\emptyset", "no solutions": r"\emptyset",
    "no real solution": r"\emptyset",
    "no real solutions": r"\emptyset", "empty set": r"\emptyset", "the empty set": r"\emptyset", "无解": r"\emptyset",
    "does not exist": "undefined", "dne": "undefined", "not defined": "undefined", "infinity": r"\infty",
    "positive infinity": r"\infty", "negative infinity": r"-\infty", "all integers": r"\mathbb{Z}",
    "integers": r"\mathbb{Z}",
}  # fmt: skip


def tidy(answer: str) -> str:
    r"""The answer in one notation.

    >>> tidy("3×10⁵"), tidy(r"\dfrac{1}{2}."), tidy("三分之一"), tidy("twenty-one"), tidy(r"0.\overline{3}")
    ('3\\times 10^{5}', '\\frac{1}{2}', '\\frac{1}{3}', '21', '\\frac{1}{3}')
    """
    answer = _undelimit(clean(answer).strip())
    if not answer.isascii():
        answer = _from_unicode(answer)
    for pattern, replacement in _RENAMED if re.search(r"[\\<>!=*_'~.a-zA-Z]", answer) else ():
        answer = pattern.sub(replacement, answer)
    whole = _TEXT.fullmatch(answer.strip())
    answer = whole[1] if whole else answer
    answer = re.sub(r"^\s*(?:\\approx|\\therefore|\\implies|\\Rightarrow|=)\s*", "", answer)
    if "." in answer and re.search(r"[\\(]", answer):
        answer = _PERIOD.sub(_read_period, answer)
        answer = _DOTS.sub(_read_period, answer)
    answer = _brace_roots(re.sub(r"\s+", " ", answer)).strip()
    if re.fullmatch(r"-?\d{1,3}(?: \d{3})+,\d+", answer):
        answer = answer.replace(" ", "").replace(",", ".")
    if answer.endswith((".", ",")):
        answer = answer.rstrip(".,; ")
    ordinal = _ORDINAL.match(answer) or _ORDINAL.match(plain_text(answer))
    if ordinal:
        return ordinal[1]
    return _from_words(answer)


def _brace_roots(answer: str) -> str:
    """`\\sqrt(2)` as `\\sqrt{2}`."""
    for _ in range(answer.count("\\sqrt")):
        found = re.search(r"\\sqrt\s*\(", answer)
        if found is None:
            break
        depth = 1
        for index in range(found.end(), len(answer)):
            depth += {"(": 1, ")": -1}.get(answer[index], 0)
            if depth == 0:
                inner = answer[found.end() : index]
                answer = rf"{answer[: found.start()]}\sqrt{{{inner}}}{answer[index + 1 :]}"
                break
        else:
            break
    return answer


def plain_text(answer: str) -> str:
    r"""The answer without \text and the like, and without braces around them.

    >>> plain_text(r"\text{John} \textbf{Smith}")
    'John Smith'
    """
    return _TEXT.sub(r"\1", answer)


def _undelimit(answer: str) -> str:
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = answer[len(opening) : -len(closing)]
        if answer.startswith(opening) and answer.endswith(closing) and len(answer) > 2 and "$" not in inner:
            return inner.strip()
    box = re.fullmatch(r"\\f?box(?:ed)?\s*\{(.*)\}", answer, re.DOTALL)
    if box and box[1].count("{") == box[1].count("}"):
        return box[1].strip()
    if answer.endswith("$") and not answer.endswith(r"\$") and answer.count("$") == 1:
        return answer[:-1].strip()
    if answer.count("$") - answer.count(r"\$") > 1:
        answer = re.sub(r"(?<!\\)\$", "", answer)
    return re.sub(r"(?<!\\)\\[()\[\]]", "", answer)


def _from_unicode(answer: str) -> str:
    answer = _SUPERSCRIPT.sub(lambda m: "^{" + "".join(unicodedata.normalize("NFKC", c) for c in m[0]) + "}", answer)
    answer = answer.replace("\N{MINUS SIGN}", "-")
    answer = _SUBSCRIPT.sub(lambda m: "_{" + "".join(unicodedata.normalize("NFKC", c) for c in m[0]) + "}", answer)
    answer = re.sub(r"(\d?)\s?([¼-¾⅐-⅞])", _vulgar, answer)
    answer = "".join(_SIGNS.get(char, char) for char in answer)
    answer = answer.replace("\N{MINUS SIGN}", "-")
    return re.sub(r"\\sqrt \s*(\d+(?:\.\d+)?)", r"\\sqrt{\1}", answer)


def _vulgar(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match[2]).partition("\N{FRACTION SLASH}")
    return rf"{match[1]}\frac{{{top}}}{{{bottom}}}"


def _read_period(match: re.Match[str]) -> str:
    groups = [group for group in match.groups() if group is not None]
    value = repeating(groups[0], groups[1], groups[2])
    return as_latex(value)


def as_latex(value: Fraction) -> str:
    """An exact number in LaTeX."""
    if value.denominator == 1:
        return str(value.numerator)
    return rf"{'-' if value < 0 else ''}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _from_words(answer: str) -> str:
    """Number words and Chinese numerals as digits; well-known phrases as signs."""
    text = plain_text(answer).strip().rstrip(".")
    meaning = _MEANINGS.get(text.lower())
    if meaning is not None:
        return meaning
    if text[:1].isalpha() or re.search(r"illion|thousand", text):
        negative = re.match(r"(?:minus|negative)\s+", text, re.IGNORECASE)
        value = read_words(text[negative.end() :] if negative else text) if text.isascii() else None
        if value is not None:
            return as_latex(-value if negative else value)
    if re.search(f"{NUMERAL}|分之", text):
        chinese = _CHINESE.match(text)
        value = read_chinese(chinese[1]) if chinese else None
        if chinese and value is not None and not (chinese[2] and chinese[1].isdigit()):
            return as_latex(value) + (rf"\text{{{chinese[2]}}}" if chinese[2] else "")
    return answer
