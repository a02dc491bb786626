"""Words, sentences, paragraphs, bullets: how the constraints cut a reply into countable things."""

from __future__ import annotations

import re
import unicodedata

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
_UNSPACED = re.compile(rf"[{_CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")  # scripts that put no blanks between words
_WORD = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}_])\w)+(?:(?:['’\-‐]|(?<=\d)[.,](?=\d))(?:(?![{_CJK}_])\w)+)*")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")
_ITEM = re.compile(r"^[^\S\n]*(?:[*+\-][^\S\n]+|[•◦‣▪][^\S\n]*)(?=\S)(.*)$", re.MULTILINE)
_RULE = re.compile(r"(?:[^\S\n]*[*_\-]){3,}[^\S\n]*")  # a thematic break: ---, * * *
_NUMBERED = re.compile(r"^[^\S\n]*(?:\d{1,3}[.)]|[a-zA-Z]\))[^\S\n]+(?=\S)", re.MULTILINE)
_SENTENCE_END = re.compile(r"""(?<![.!?…])[.!?…]++["'”’)\]*_]*+(?=\s|$)|[。！？]+["”’」』）]*""")
_TITLES = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "mx",
        "dr",
        "prof",
        "st",
        "sr",
        "jr",
        "rev",
        "hon",
        "gen",
        "col",
        "lt",
        "sgt",
        "capt",
        "fig",
        "no",
        "vs",
        "cf",
        "approx",
        "inc",
        "ltd",
        "co",
    ]
)
_DOTTED = re.compile(
    r"(?:^|[\s(\"'“‘])(?:[A-Za-z]\.)+[A-Za-z]$|(?:^|[\s(\"'“‘])Ph\.D$"
)  # what stands before the last dot
_STARTERS = frozenset(
    [
        "the",
        "a",
        "an",
        "he",
        "she",
        "it",
        "we",
        "they",
        "you",
        "i",
        "this",
        "that",
        "these",
        "those",
        "there",
        "then",
        "but",
        "and",
        "so",
        "however",
        "in",
        "on",
        "at",
        "when",
        "while",
        "if",
        "my",
        "our",
        "his",
        "her",
        "its",
        "their",
        "what",
        "who",
        "why",
        "how",
        "where",
    ]
)


def words(text: str) -> list[str]:
    """Words in order: letters and digits with inner apostrophes, hyphens and decimal signs; each CJK character is one.

    >>> words("Don't pay 1,000.50 for a well-known “trick” – 东京.")
    ["Don't", 'pay', '1,000.50', 'for', 'a', 'well-known', 'trick', '东', '京']
    """
    return _WORD.findall(text)


def sentences(text: str) -> list[str]:
    """Sentences that have a word. They end at `.!?…` before a blank, at 。！？, at blank lines and at list items.

    No end: decimals, titles ("Dr."), initials, and "U.S.", "e.g." unless a word that opens sentences follows.

    >>> sentences("Dr. No paid $3.50. Did he? Yes!")
    ['Dr. No paid $3.50.', 'Did he?', 'Yes!']
    """
    found = []
    for block in _blocks(text):
        start = 0
        for end in _SENTENCE_END.finditer(block):
            if _ends_sentence(block, end):
                found.append(block[start : end.end()])
                start = end.end()
        found.append(block[start:])
    return [sentence.strip() for sentence in found if _WORD.search(sentence)]


def _blocks(text: str) -> list[str]:
    marked = _NUMBERED.sub("\n\n", _ITEM.sub(r"\n\n\1\n\n", text))
    return _BLANK_LINES.split(marked)


def _ends_sentence(block: str, end: re.Match[str]) -> bool:
    if not end[0].startswith(".") or end[0].startswith(".."):
        return True
    rest = block[end.end() : end.end() + 40]
    if not rest.strip():
        return True
    before = block[max(0, end.start() - 24) : end.start()]
    last_word = re.search(r"[^\W\d_]+$", before)
    follower = _WORD.search(rest)
    opens = follower is not None and follower[0].lower() in _STARTERS and follower[0][0].isupper()
    if _DOTTED.search(before):
        return opens
    if last_word is None:
        return True
    is_initial = len(last_word[0]) == 1 and last_word[0].isupper() and last_word[0] != "I"
    return opens if is_initial else last_word[0].lower() not in _TITLES


def paragraphs(text: str) -> list[str]:
    """The parts between blank lines that are not blank.

    >>> paragraphs("\\n\\nOne.\\n \\nTwo,\\nstill two.")
    ['One.', 'Two,\\nstill two.']
    """
    return [part.strip() for part in _BLANK_LINES.split(text) if part.strip()]


def parts_between(text: str, separator: str) -> list[str]:
    """What stands between separators, stripped; a separator has blanks or nothing around it (`***bold***` has none).

    Blank parts at the two ends are dropped, since a separator there separates nothing.

    >>> parts_between("One. *** Two ***very***. ***", "***")
    ['One.', 'Two ***very***.']
    """
    parts = [part.strip() for part in re.split(rf"(?<!\S){re.escape(separator)}(?!\S)", text)]
    return parts[not parts[0] : len(parts) - (len(parts) > 1 and not parts[-1])]


def bullets(text: str) -> list[str]:
    """The items of Markdown bullet lists, at any depth; thematic breaks and bold lines are none.

    >>> bullets("* one\\n  - two\\n\\n---\\n**Not one.**")
    ['one', 'two']
    """
    return [item[1].strip() for item in _ITEM.finditer(text) if not _RULE.fullmatch(item[0])]


def phrase(text: str) -> re.Pattern[str]:
    """A pattern for the words `text` as such: in either case, over any white space, never inside a longer word.

    >>> bool(phrase("war").search("forward")), bool(phrase("C++").search("I like c++."))
    (False, True)
    """
    tokens = plain(text).split()
    body = r"\s+".join(re.escape(token) for token in tokens)
    left = r"(?<!\w)" if _bounded(tokens[0][0]) else ""
    right = r"(?!\w)" if _bounded(tokens[-1][-1]) else ""
    return re.compile(left + body + right, re.IGNORECASE)


def _bounded(char: str) -> bool:
    return (char.isalnum() or char == "_") and not _UNSPACED.match(char)


def plain(text: str) -> str:
    """Composed characters, straight apostrophes, line feeds: two ways to type one text become one."""
    composed = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    return composed.replace("’", "'").replace("\u200b", "").replace("\ufeff", "")
