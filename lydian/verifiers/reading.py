"""Where a completion says its answer: after the reasoning, in an answer block, in a box, or after the word "answer".

The rules, in order:
1. Control characters go; digits, blanks and minus signs of all scripts become ASCII.
2. If reasoning is marked by `<think>` tags or their like (`lydian.verifiers.phrases` has them), only what follows the
   last closing tag counts; unfinished reasoning has no answer.
3. If the model went on to ask itself another question, what begins there does not count.
4. A marked answer is the content of the only `<answer>…</answer>` block (several that differ are no answer), else
   whatever comes last of: a `\\boxed{…}`; the text after `####`, "answer is", "answer:" (in other
   languages too) or a marker of the caller's.
5. Boxes, or marked lines, that follow each other with nothing but "and", "or" or punctuation between them are one
   answer of several values, so that listing candidates pays nobody.
6. Where one number is wanted, two different ones joined by "or", "and", a comma or a slash are none.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import pairwise

from lydian.verifiers.numbers import Number, find_numbers
from lydian.verifiers.phrases import ANSWER, CONTROL_TOKEN, REASONING_ENDS, REASONING_STARTS

MAX_CHARACTERS = 32_000
"""Only this many characters at the end of a completion are searched, and as many at its start for reasoning."""

# The time that reading takes must stay linear in the text, whatever a model repeats.
_MAX_MARKS = 32
_MAX_ANSWER_CHARACTERS = 4000
_MAX_GAP_CHARACTERS = 40

_HEDGE = re.compile(r"\bor\b", re.IGNORECASE)
_LISTING = re.compile(r"[\s,;/|&$*]*(?:\band\b)?[\s,;/|&$*]*")
_BLOCK_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:begin|f)?box(?:ed)?(?![a-zA-Z])\s*")
_BARE_BOX = re.compile(r"([^\s${}\\]+?)[.,;]?(?=[\s$\\]|$)")  # "\boxed 2"
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_PERCENT_AFTER = re.compile(r"[\s$\\)\]]{0,8}(?:%|percent\b|pct\b)")
_BLANKS = re.compile(r"\s*")
_SENTENCE_END = re.compile(r"(?<!approx)[.!?](?=\s|$)|\N{IDEOGRAPHIC FULL STOP}|\n")
_NEXT_QUESTION = re.compile(r"^\W{0,3}(?:Question|Problem|Q|User|Human|Query)\b[ \d.]{0,4}:", re.MULTILINE)
_BETWEEN = r"[\s,;:.$*&|/\\()\[\]]*"
_JOINED = re.compile(rf"{_BETWEEN}(?:(?:\\text\s*\{{\s*)?(?:and|or)\b[\s}}]*)?{_BETWEEN}", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A marked answer.

    text        what stands at the mark
    is_closed   whether something after it (a brace, a tag, a line end) shows that it is complete
    """

    text: str
    is_closed: bool


class NoAnswer(Exception):
    """There is no single answer in the text; the message says why."""


@dataclass(frozen=True, slots=True)
class _Mark:
    start: int
    end: int
    text: str
    is_closed: bool


def answer_part(text: str) -> str:
    """The part of a completion in which an answer counts, cleaned (rules 1 to 3). Raises NoAnswer.

    >>> answer_part("<think>maybe 3</think> It is 4.\\nQuestion: what is 1 + 1?")
    ' It is 4.\\n'
    """
    if len(text) > 2 * MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}\x00{text[-MAX_CHARACTERS:]}"  # nothing forms a tag across a control character
    part = clean(CONTROL_TOKEN.sub(" ", after_reasoning(text)[-MAX_CHARACTERS:]))
    for question in _NEXT_QUESTION.finditer(part):
        if part[: question.start()].strip():
            return part[: question.start()]
    return part


def after_reasoning(text: str) -> str:
    """What a completion says after its reasoning, as written (rule 2). Raises NoAnswer if the reasoning does not end.

    >>> after_reasoning("<think>Hm.</think> Hello!")
    ' Hello!'
    """
    end = max((match.end() for match in REASONING_ENDS.finditer(text)), default=0)
    if REASONING_STARTS.search(text, end):
        raise NoAnswer("the reasoning does not end")
    return text[end:]


def clean(text: str) -> str:
    """ASCII digits, blanks, minus signs and full-width forms; no control characters.

    >>> clean("\\x00−１２\\u202f３")
    '-12 3'
    """
    return re.sub(r"[^\n\t\x20-\x7e]", _ascii, text)


def _ascii(match: re.Match[str]) -> str:
    char = match[0]
    digit = unicodedata.decimal(char, None)
    if digit is not None:
        return str(digit)
    if char == "\N{MINUS SIGN}":
        return "-"
    if "\uff01" <= char <= "\uff5e":  # full-width ASCII
        return chr(ord(char) - 0xFEE0)
    category = unicodedata.category(char)
    return " " if category == "Zs" else "" if category in ("Cc", "Cf") else char


def marked_answer(part: str, *, marker: str | None = None) -> Answer | None:
    """The marked answer of what `answer_part` returned (rules 4 and 5), or None; with `marker`, only what follows it.

    Raises NoAnswer where answers are marked but contradict each other or are unfinished.

    >>> marked_answer(r"So \\boxed{3}, no: the answer is \\boxed{4}.").text
    '4'
    """
    if marker is not None:
        return _last(_after_phrases(part, re.compile(r"(?<!\w)" + re.escape(marker))), part)
    blocks = _blocks(part)
    if blocks:
        return _last(_boxes(blocks[-1]), blocks[-1]) or Answer(text=blocks[-1], is_closed=True)
    boxes = _boxes(part)
    phrases = _after_phrases(part, ANSWER)
    marks = boxes + [mark for mark in phrases if not any(box.start < mark.start < box.end for box in boxes)]
    return _last(sorted(marks, key=lambda mark: mark.start), part)


def single_number(text: str, *, index: int) -> Number:
    """The first (index 0) or the last (−1) number of the text, of which 4000 characters are searched.

    Raises NoAnswer if there is none, or a neighbour with another value is offered beside it (rule 6).

    >>> single_number("It is 3, not 4.", index=0).text
    '3'
    """
    text = text[:_MAX_ANSWER_CHARACTERS] if index == 0 else text[-_MAX_ANSWER_CHARACTERS:]
    numbers = find_numbers(text)
    if not numbers:
        raise NoAnswer("no number")
    number = numbers[index]
    if number.value is None:
        raise NoAnswer(f"{number.text:.40} is no number")
    for before, after in pairwise(numbers[:2] if index == 0 else numbers[-2:]):
        gap = text[before.end : after.start]
        is_offered = len(gap) <= _MAX_GAP_CHARACTERS and (_LISTING.fullmatch(gap) or _HEDGE.search(gap))
        if is_offered and before.amount != after.amount:
            raise NoAnswer(f"several candidates: {before.text}, {after.text}")
    return number


def _blocks(part: str) -> list[str]:
    blocks, start = [], None
    for tag in _BLOCK_TAG.finditer(part):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            blocks.append(part[start : tag.start()].strip())
            start = None
    if start is not None:
        raise NoAnswer("the answer block is not closed")
    if len(set(blocks)) > 1:
        raise NoAnswer("several answer blocks that differ")
    return blocks


def _last(marks: list[_Mark], part: str) -> Answer | None:
    """The last mark, together with those directly before it."""
    if not marks:
        return None
    last = first = marks[-1]
    texts = [last.text]
    for mark in reversed(marks[:-1]):
        if mark.end > first.start:  # a phrase that only introduces the next mark ("the answer is \boxed{4}")
            continue
        gap = part[mark.end : first.start]
        if not mark.text or len(gap) > _MAX_GAP_CHARACTERS or not _JOINED.fullmatch(gap):
            break
        first = mark
        texts.insert(0, mark.text)
    return Answer(text=" or ".join(dict.fromkeys(texts)), is_closed=last.is_closed)


def _after_phrases(part: str, phrase: re.Pattern[str]) -> list[_Mark]:
    """What follows each phrase, to the end of its sentence or line."""
    marks = []
    for match in list(phrase.finditer(part))[-_MAX_MARKS:]:
        start = _BLANKS.match(part, match.end()).end()  # type: ignore[union-attr]  # it matches the empty string too
        sentence_end = _SENTENCE_END.search(part, start, start + _MAX_ANSWER_CHARACTERS)
        end = sentence_end.start() if sentence_end else min(len(part), start + _MAX_ANSWER_CHARACTERS)
        marks.append(_Mark(match.start(), end, part[start:end].strip(" *\t"), sentence_end is not None))
    return marks


def _boxes(part: str) -> list[_Mark]:
    boxes = []
    for match in list(_BOX.finditer(part))[-_MAX_MARKS:]:
        if part[match.end() : match.end() + 1] == "{":
            end = _closing_brace(part, match.end())
            text = part[match.end() + 1 : end - 1] if end else ""
        else:
            bare = _BARE_BOX.match(part, match.end())
            end, text = (bare.end(), bare[1]) if bare else (None, "")
        if end is None:
            continue
        text = re.sub(r"(?<=\d)\s*(?:percentage|pct)$", " percent", text.strip())
        percent = _PERCENT_AFTER.match(part, end)
        end, text = (percent.end(), f"{text.strip()} percent") if percent else (end, text.strip())
        boxes.append(_Mark(match.start(), end, text, True))
    return boxes


def _closing_brace(part: str, start: int) -> int | None:
    """The index after the brace that closes the one at `start`."""
    depth = 0
    for match in _BRACE.finditer(part, start, start + _MAX_ANSWER_CHARACTERS):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0 and match[0] == "}":
            return match.end()
    return None
