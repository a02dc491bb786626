"""Files stay within 400 lines (an example within 120), functions within 60 besides their docstring."""

from __future__ import annotations

import ast

FILE_LINES, EXAMPLE_LINES, FUNCTION_LINES = 400, 120, 60


def oversized(source):
    limit = EXAMPLE_LINES if source.path.parts[0] == "examples" else FILE_LINES
    num_lines = len(source.text.splitlines())
    found = [f"{source.path}: {num_lines} lines, at most {limit}"] if num_lines > limit else []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (n := code_lines(node)) > FUNCTION_LINES:
            found.append(f"{source.place(node)}: {node.name} has {n} lines, at most {FUNCTION_LINES}")
    return found


def code_lines(function):
    """From `def` to the last line, without the docstring: documentation is not complexity."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    return function.end_lineno - function.lineno + 1 - (first.end_lineno - first.lineno + 1 if documented else 0)


def test_files_and_functions_are_small(sources):
    assert [found for s in sources for found in oversized(s)] == []


def test_the_limits_are_exact(planted):
    """`def`, two lines of docstring and 59 assignments are 60 lines of code; one more assignment is too much."""
    function = 'def f():\n    """Says\n    much."""\n' + "    x = 1\n" * 59
    assert oversized(planted("lydian/a.py", function)) == []
    assert oversized(planted("lydian/a.py", function + "    x = 1\n")) == ["lydian/a.py:1: f has 61 lines, at most 60"]
    assert oversized(planted("lydian/a.py", "x = 1\n" * 400)) == []
    assert oversized(planted("lydian/a.py", "x = 1\n" * 401)) == ["lydian/a.py: 401 lines, at most 400"]
    assert oversized(planted("examples/a.py", "x = 1\n" * 121)) == ["examples/a.py: 121 lines, at most 120"]
