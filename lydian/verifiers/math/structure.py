"""What an answer is made of: lists, sets, tuples and intervals, matrices, and at the leaves expressions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["leaf", "list", "set", "tuple", "interval", "matrix", "union"]

MAX_ITEMS = 200
"""A list of more items is a leaf: comparing all with all must not take for ever."""

_OPENING, _CLOSING = "([{", ")]}"
_SEPARATOR = re.compile(
    r"\s*(?:[,;]|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\\(?:wedge|vee|lor|land)(?![a-zA-Z])|(?<![\\a-zA-Z])(?:and|or)(?![a-zA-Z])|或|和)\s*"
)
_MATRIX = re.compile(
    r"^[(\[|]?\s*\\begin\s*\{\s*([pbvBV]?)(matrix|smallmatrix|array)\s*\}\s*(?:\{[^{}]*\})?(.*)\\end\s*\{\s*[pbvBV]?(?:matrix|smallmatrix|array)\s*\}\s*[)\]|]?$",
    re.DOTALL,
)
_THOUSANDS = re.compile(r"^-?\d{1,3}(?:,\d{3})+(?:\.\d+)?$|^-?\d{1,3}(?:\.\d{3})+,\d+$")
_DECIMAL_COMMA = re.compile(r"^-?\d+,\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """kind   what it is
    text   the text of all of it
    items  its parts; a matrix's are its rows
    ends   the brackets of a tuple or interval, such as "[)"
    """

    kind: Kind
    text: str
    items: tuple[Structure, ...] = ()
    ends: str = ""


def read_structure(text: str, *, depth: int = 0) -> Structure:
    """The structure of an answer in the notation of `lydian.verifiers.math.notation`.

    >>> [read_structure(text).kind for text in ("1, 2", r"\\{1,2\\}", "(1,2)", "[1,2)", "(x+1)", "1,234")]
    ['list', 'set', 'tuple', 'interval', 'leaf', 'leaf']
    """
    text = text.strip()
    leaf = Structure(kind="leaf", text=text)
    if depth > 6:
        return leaf
    matrix = _MATRIX.match(text)
    if matrix and r"\begin" not in matrix[3] and matrix[1] not in ("v", "V") and text[0] != "|":
        return _read_matrix(text, matrix[3], depth)
    unions = split_top(text, re.compile(r"\\cup(?![a-zA-Z])"))
    if len(unions) > 1:
        items = tuple(read_structure(part, depth=depth + 1) for part in unions)
        return Structure(kind="union", text=text, items=items) if all(i.kind != "leaf" for i in items) else leaf
    parts = _split_list(text)
    if len(parts) > 1:
        items = tuple(read_structure(part, depth=depth + 1) for part in parts)
        return Structure(kind="list", text=text, items=items) if len(items) <= MAX_ITEMS else leaf
    if r"\pm" in text or r"\mp" in text:
        plus = re.sub(r"\\pm(?![a-zA-Z])", "+", re.sub(r"\\mp(?![a-zA-Z])", "-", text))
        minus = re.sub(r"\\pm(?![a-zA-Z])", "-", re.sub(r"\\mp(?![a-zA-Z])", "+", text))
        signed = [re.sub(r"(^|[=(,{])\s*\+\s*", r"\1", part) for part in (plus, minus)]
        return Structure(kind="list", text=text, items=tuple(read_structure(p, depth=depth + 1) for p in signed))
    return _read_group(text, depth) or leaf


def is_comma_list(text: str, *, or_thousands: bool = False) -> bool:
    """Whether a leaf is digits and commas, so that it may have been meant as a list.

    >>> is_comma_list("1,2"), is_comma_list("1,234"), is_comma_list("1,234", or_thousands=True)
    (True, False, True)
    """
    text = text.strip()
    if _THOUSANDS.match(text):
        return or_thousands and re.fullmatch(r"-?[\d,]+", text) is not None
    return _DECIMAL_COMMA.match(text) is not None


def read_list(text: str) -> Structure:
    """The text as a list, whatever its commas could mean."""
    items = tuple(Structure(kind="leaf", text=part.strip()) for part in text.split(","))
    return Structure(kind="list", text=text, items=items)


def split_top(text: str, separator: re.Pattern[str]) -> list[str]:
    """The parts of the text between separators that stand in no bracket."""
    parts, start = [], 0
    inside = _depths(text)
    for match in separator.finditer(text):
        middle = match.start() + (len(match[0]) - len(match[0].lstrip()))
        if middle < len(inside) and inside[middle] == 0 and match.start() >= start:
            parts.append(text[start : match.start()])
            start = match.end()
    return [*parts, text[start:]]


def _depths(text: str) -> list[int]:
    """For each character how many brackets are open before it, `\\begin` and `\\langle` included."""
    depths, depth, index = [0] * len(text), 0, 0
    while index < len(text):
        char = text[index]
        width = 1
        if char == "\\":
            command = re.compile(r"\\(?:begin|end|langle|rangle|[{}]|[a-zA-Z]+|.?)", re.DOTALL).match(text, index)
            name = command[0] if command else char
            width = max(1, len(name))
            if name in (r"\end", r"\rangle", r"\}"):
                depth -= 1
            for position in range(index, min(len(text), index + width)):
                depths[position] = depth
            if name in (r"\begin", r"\langle", r"\{"):
                depth += 1
        else:
            if char in _CLOSING:
                depth -= 1
            depths[index] = depth
            if char in _OPENING:
                depth += 1
        index += width
    return depths


def _split_list(text: str, *, is_inside: bool = False) -> list[str]:
    plain = re.sub(r"^(-?)\s*(?:\\?\$|[€£¥])\s*", r"\1", text.replace("{,}", ",").strip())
    if (
        (not is_inside and (_THOUSANDS.match(plain) or _DECIMAL_COMMA.match(plain)))
        or "{,}" in text
        or not re.search(r"[,;]|and|or|或|和|wedge|vee", text)
    ):
        return [text]
    separator = _SEPARATOR
    if ";" in text:
        semicolons = [part.strip() for part in split_top(text, re.compile(";"))]
        if len(semicolons) > 1:
            return [part for part in semicolons if part]
    if re.search(r"\\begin|\\text\s*\{[^{}]*[a-zA-Z]{3,}[^{}]* [^{}]*\}", text) and not re.search(
        r"\},|\\text\s*\{\s*,?\s*(?:and|or)", text
    ):
        return [text]
    return [part.strip() for part in split_top(text, separator) if part.strip()]


def _read_matrix(text: str, body: str, depth: int) -> Structure:
    rows = [
        row for row in re.split(r"\\\\(?:\[[^\]]*\])?|\\cr(?![a-zA-Z])", body) if row.replace(r"\hline", "").strip()
    ]
    items = tuple(
        Structure(
            kind="tuple",
            text=row,
            items=tuple(read_structure(cell, depth=depth + 1) for cell in row.replace(r"\hline", "").split("&")),
            ends="()",
        )
        for row in rows
    )
    return Structure(kind="matrix", text=text, items=items)


def _read_group(text: str, depth: int) -> Structure | None:
    """A set, tuple or interval, or what stands in needless brackets."""
    for opening, closing in (
        (r"\{", r"\}"),
        (r"\langle", r"\rangle"),
        ("(", ")"),
        ("[", "]"),
        ("(", "]"),
        ("[", ")"),
        ("{", "}"),
        ("]", "["),
        ("]", "]"),
        ("[", "["),
    ):
        if not (text.startswith(opening) and text.endswith(closing)) or len(text) < len(opening) + len(closing):
            continue
        if opening == "(" and closing == ")" and text.endswith(r"\)"):
            continue
        inner = text[len(opening) : -len(closing)].strip()
        if any(d < 0 for d in _depths(inner)):
            continue
        parts = _split_list(inner, is_inside=True) if not _is_builder(inner) else [inner]
        if opening == r"\{":
            if _is_builder(inner):
                condition = _BUILDER.match(inner)
                return read_structure(condition[1], depth=depth + 1) if condition else None
            items = tuple(read_structure(part, depth=depth + 1) for part in parts) if inner else ()
            if len(items) == 1 and items[0].kind == "list":
                items = items[0].items
            return Structure(kind="set", text=text, items=items) if len(items) <= MAX_ITEMS else None
        if opening == "{" or (len(parts) == 1 and opening == "(" and closing == ")" and inner):
            return read_structure(inner, depth=depth + 1)
        if 2 <= len(parts) <= MAX_ITEMS:
            items = tuple(read_structure(part, depth=depth + 1) for part in parts)
            if opening == closing == "[" or opening == "]":  # ]1, 2[ is an open interval
                ends = ("(" if opening == "]" else "[") + (")" if closing == "[" else "]")
                return Structure(kind="interval", text=text, items=items, ends=ends)
            ends = "()" if opening == r"\langle" else opening + closing
            if ends == "[]" and all(item.kind == "interval" and item.ends == "[]" for item in items):
                rows = tuple(Structure(kind="tuple", text=i.text, items=i.items, ends="()") for i in items)
                return Structure(kind="matrix", text=text, items=rows)
            return Structure(kind="tuple" if ends == "()" else "interval", text=text, items=items, ends=ends)
    return None


_BUILDER = re.compile(r"^[a-zA-Z]\s*(?:\\in\s*\\mathbb\s*\{R\}\s*)?(?:\\mid(?![a-zA-Z])|\||:)\s*(.+)$", re.DOTALL)


def _is_builder(inner: str) -> bool:
    return re.search(r"\\mid|(?<!\|)\|(?!.*\|)|:(?!\d)|\\in(?![a-zA-Z])", inner) is not None
