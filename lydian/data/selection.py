"""Which problems go where: duplicates out, disjoint shares, a seeded few. All by text, never by place in a file."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable

from lydian.data.problems import Conversation, Feedback, Item, Preference, Problem
from lydian.errors import InputError

_THOUSANDS_COMMA = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MARK = re.compile(r"[^\w\s]|_")


def normalised_text(problem: Problem | Conversation | Preference | Feedback) -> str:
    """What is asked, so written that equal problems are equal texts.

    Lower case; white space folded; punctuation between words dropped. Numbers keep their point, sign, operators and
    brackets (2 - 3 is not 2 + 3), and lose their thousands commas. System messages and the reply of a conversation do
    not count: the same question with and without a worked solution gives the same text.

    >>> from lydian.data.problems import Message
    >>> messages = (Message(role="user", content="Sam 's dog weighs 1,200.5 g . How much is that?"),)
    >>> normalised_text(Problem(id="1", messages=messages))
    'sam s dog weighs 1200.5 g how much is that'
    """
    asked = problem.messages[:-1] if isinstance(problem, Conversation) else problem.messages
    texts = [message.content for message in asked if message.role != "system"]
    text = "\n".join(texts or [message.content for message in problem.messages])
    # NFC, not NFKC: compatibility forms would turn 2² into 22.
    text = _THOUSANDS_COMMA.sub("", unicodedata.normalize("NFC", text).casefold())
    return " ".join(_MARK.sub(_fold, text).split())


def _fold(match: re.Match[str]) -> str:
    mark, text = match[0], match.string
    before, after = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
    category = unicodedata.category(mark)
    if mark == "." and after.isdigit() and not before.isalpha():
        return mark
    is_hyphen = mark == "-" and before.isalpha() and after.isalpha()
    # Brackets change what an expression is worth; symbols (+, =, <, $, …) are not punctuation.
    is_operator = mark in "-*/%" or category in ("Ps", "Pe") or not category.startswith("P")
    return f" {mark} " if is_operator and not is_hyphen else " "


def drop_duplicates(problems: Iterable[Problem]) -> tuple[tuple[Problem, ...], int]:
    """The first problem of each normalised text, in order, and how many were dropped."""
    first: dict[str, Problem] = {}
    num_seen = 0
    for problem in problems:
        num_seen += 1
        first.setdefault(normalised_text(problem), problem)
    return tuple(first.values()), num_seen - len(first)


def take_share(items: Iterable[Item], low: float, high: float, seed: int) -> tuple[Item, ...]:
    """The items with low ≤ u < high, where u in [0, 1) is a hash of the seed and the normalised text.

    Shares of one seed that do not overlap never share a problem, in whichever files and however often it occurs; the
    share of an item does not depend on the others. Raises InputError unless 0 ≤ low < high ≤ 1.
    """
    if not 0 <= low < high <= 1:
        raise InputError(
            where="share", given=f"[{low}, {high})", expected="0 ≤ low < high ≤ 1", fix="Correct the two numbers."
        )
    # 53 bits: a float holds them exactly, so that no item rounds up to 1 and falls out of every share.
    return tuple(item for item in items if low <= (_hash("share", seed, normalised_text(item)) >> 11) / 2**53 < high)


def limit(items: Iterable[Item], num: int, seed: int) -> tuple[Item, ...]:
    """At most `num` items, chosen and ordered by a hash of the seed, the normalised text and the id.

    The choice does not depend on the order of the items, and a larger `num` only adds to it. Raises InputError unless
    num ≥ 1.
    """
    if num < 1:
        raise InputError(where="limit", given=str(num), expected="an integer ≥ 1", fix="Leave it out to keep all.")
    return tuple(sorted(items, key=lambda item: (_hash("limit", seed, normalised_text(item)), item.id))[:num])


def _hash(purpose: str, seed: int, text: str) -> int:
    """64 bits; `purpose` keeps the choices of one seed independent of each other."""
    return int.from_bytes(hashlib.sha256(f"{purpose}\n{seed}\n{text}".encode()).digest()[:8], "big")
