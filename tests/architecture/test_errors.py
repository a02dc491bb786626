"""An error says four things: where, what was given, what was expected, what to do."""

from __future__ import annotations

import ast
import inspect

import lydian.errors

FOUR = {"where", "given", "expected", "fix"}
RAISED = {name for name, kind in inspect.getmembers(lydian.errors, inspect.isclass) if issubclass(kind, Exception)}


def incomplete(source):
    """Calls of Lydian's errors without all four keywords, or with an empty text for one of them."""
    found = []
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or name_of(node.func) not in RAISED:
            continue
        if any(keyword.arg is None for keyword in node.keywords):  # **facts: filled in elsewhere
            continue
        said = {k.arg for k in node.keywords if not (isinstance(k.value, ast.Constant) and k.value.value == "")}
        if missing := sorted(FOUR - said):
            found.append(f"{source.place(node)}: {name_of(node.func)} lacks {', '.join(missing)}")
    return found


def name_of(function):
    return getattr(function, "id", getattr(function, "attr", None))


def bare(source):
    """`raise SomeError` without a call, for Lydian's errors."""
    raises = (node for node in ast.walk(source.tree) if isinstance(node, ast.Raise) and node.exc)
    return [source.place(node) for node in raises if name_of(node.exc) in RAISED]


def test_every_error_says_all_four(library):
    assert [found for s in library for found in incomplete(s) + bare(s)] == []


def test_the_check_sees_what_is_missing(planted):
    text = "raise DataError(where='a', given=1, expected='b', fix='c')\n"
    assert incomplete(planted("lydian/a.py", text)) == []
    short = text.replace(", fix='c'", "") + text.replace("'b'", "''")
    assert incomplete(planted("lydian/a.py", short)) == [
        "lydian/a.py:1: DataError lacks fix",
        "lydian/a.py:2: DataError lacks expected",
    ]
    assert bare(planted("lydian/a.py", "raise errors.RunError\nraise ValueError\n")) == ["lydian/a.py:1"]
