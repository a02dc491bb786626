"""The tests of a programming problem, and when what a program gave is what they expect.

A problem's tests stand in its `metadata`, or, where that has none, as one JSON object in its `answer`:

entry_point  name of the function to call; a class `Solution` with a method of that name does too
prompt       the beginning of the program that was shown (as in HumanEval), so that a bare body can be run
test         source of a function `check(candidate)` that asserts (as in HumanEval)
tests        a list of `assert f(…) == …` lines (also under the name `test_list`) and of cases
cases        a list of cases: `{"args": […], "expected": …}`, with `kwargs` where wanted
io           a list of `{"stdin": …, "stdout": …}`; one pair may also stand by itself

Assertions of the shape `f(literals) == literal` become pairs of arguments and expected value, compared in the parent
as Python compares: 1 == 1.0 == True, (1, 2) != [1, 2], no tolerance. If one assertion has another shape, all tests run
as they are in a second sandboxed process that knows the candidate only by the plain data it returns.

In a case, whose values are JSON, the rule is: true and false equal only themselves; an integer equals the same
integer, also written as a float; where a float is expected, a number within the relative tolerance does; a tuple is a
list; an integer key is its decimal text; NaN equals NaN; a set equals nothing.

Standard output is compared line by line without blanks at the ends of lines and blank lines at the end, and in a line
word by word: each the same text or, where a decimal fraction is expected, a number within the relative tolerance.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lydian.data.problems import Problem
from lydian.verifiers.code.child import NotPlain, encode

_KEYS = ("test", "tests", "test_list", "cases", "io", "stdout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call and the value it must give; `is_python` says by which of the two rules they are compared."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    expected: Any
    is_python: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests of one problem: calls, tests to run as they are, or pairs of standard input and output."""

    entry_point: str = ""
    prompt: str = ""
    calls: tuple[Call, ...] = ()
    tests: str = ""
    io: tuple[tuple[str, str], ...] = ()

    @property
    def preamble(self) -> str:
        """What stands in the prompt before the function that is asked for: imports and helpers."""
        try:
            statements = ast.parse(self.prompt + "\n    pass\n").body
        except SyntaxError:
            return ""
        for node in statements:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == self.entry_point:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return "".join(self.prompt.splitlines(keepends=True)[: first - 1])
        return ""


def read_suite(problem: Problem) -> Suite:
    """The tests of a problem. Raises ValueError that says what is amiss."""
    table: Mapping[str, Any] = problem.metadata
    if not any(key in table for key in _KEYS):
        try:
            table = json.loads(problem.answer or "")
        except ValueError as error:
            raise ValueError("no tests in metadata, and the answer is no JSON object of tests") from error
        if not isinstance(table, dict):
            raise ValueError("no JSON object of tests")
    entry_point = _text(table, "entry_point")
    items = [*_list(table, "tests"), *_list(table, "test_list")]
    lines = [item for item in items if isinstance(item, str)]
    cases = [item for item in items if not isinstance(item, str)] + _list(table, "cases")
    pairs = [table] if "stdout" in table else _list(table, "io")
    source = "\n".join([_text(table, "test"), *lines]).strip()
    entry_point = entry_point or _called_name(lines)
    calls = _translated(source, entry_point)
    suite = Suite(
        entry_point=entry_point,
        prompt=_text(table, "prompt"),
        calls=(*map(_case, cases), *(calls or ())),
        tests=source if calls is None else "",
        io=tuple((_text(pair, "stdin"), _text(pair, "stdout")) for pair in pairs),
    )
    _require_tests(suite)
    return suite


def _require_tests(suite: Suite) -> None:
    if not (suite.calls or suite.tests or suite.io):
        raise ValueError("no test, which every program would pass")
    if suite.io and (suite.calls or suite.tests):
        raise ValueError("both calls and standard input")
    if not suite.io and not suite.entry_point.isidentifier():
        raise ValueError(f"entry_point {suite.entry_point!r}, which is no name of a function")


def _text(table: Any, key: str) -> str:
    value = table.get(key) if isinstance(table, Mapping) else 0
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} that is no text")
    return value or ""


def _list(table: Mapping[str, Any], key: str) -> list[Any]:
    value = table.get(key)
    if value is not None and not isinstance(value, (list, tuple)):
        raise ValueError(f"{key} that is no list")
    return list(value or ())


def _case(row: Any) -> Call:
    if not isinstance(row, Mapping) or "expected" not in row or not ("args" in row or "kwargs" in row):
        raise ValueError(f"a case that is no {{args, expected}}: {row!r:.80}")
    call = Call(args=_list(row, "args"), kwargs=row.get("kwargs") or {}, expected=row["expected"], is_python=False)
    _require_plain(call)
    return call


def _require_plain(call: Call) -> None:
    try:
        encode([list(call.args), dict(call.kwargs), call.expected], is_strict=True)
    except (NotPlain, TypeError) as error:
        raise ValueError(f"a case with {error}") from error


def _called_name(lines: Sequence[str]) -> str:
    found = re.match(r"\s*assert\s+(?:not\s+)?(\w+)\(", lines[0]) if lines else None
    return found[1] if found else ""


def _translated(source: str, entry_point: str) -> list[Call] | None:
    """The calls that the tests make, or None where one of them is of another shape. Raises ValueError."""
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"tests that are no Python: {error}") from error
    calls = []
    for statement in statements:
        is_check = isinstance(statement, ast.FunctionDef) and statement.name == "check"
        for inner in statement.body if is_check and isinstance(statement, ast.FunctionDef) else [statement]:
            if _is_idle(inner):
                continue
            call = _call(inner, {entry_point, "candidate"})
            if call is None:
                return None
            calls.append(call)
    return calls


def _is_idle(node: ast.stmt) -> bool:
    """Whether the statement can neither fail nor change anything: a constant, `pass`, METADATA, `assert True`."""
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant) and bool(node.test.value)
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets] == ["METADATA"]
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _call(node: ast.stmt, names: set[str]) -> Call | None:
    if not isinstance(node, ast.Assert) or not isinstance(node.test, ast.Compare):
        return None
    left, right = node.test.left, node.test.comparators[0]
    if isinstance(right, ast.Call):
        left, right = right, left
    is_equation = len(node.test.ops) == 1 and isinstance(node.test.ops[0], ast.Eq)
    if not is_equation or not isinstance(left, ast.Call) or not isinstance(left.func, ast.Name):
        return None
    if left.func.id not in names or any(keyword.arg is None for keyword in left.keywords):
        return None
    try:
        args = [ast.literal_eval(value) for value in left.args]
        kwargs = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in left.keywords}
        call = Call(args=args, kwargs=kwargs, expected=ast.literal_eval(right), is_python=True)
        _require_plain(call)
    except (ValueError, TypeError, SyntaxError):
        return None
    return call


def is_expected(wire: Any, call: Call, *, relative_tolerance: float) -> bool:
    """Whether the plain data that came back equals what the call must give. Takes time linear in what came back.

    >>> call = Call(args=[], kwargs={}, expected=[0.3], is_python=False)
    >>> is_expected(encode((0.1 + 0.2,)), call, relative_tolerance=1e-9)
    True
    """
    try:
        if call.is_python:
            return _canonical(wire) == _canonical(encode(call.expected))
        return _is_equal(wire, call.expected, relative_tolerance)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return False  # what came back is nothing that `encode` writes, or no number of that size


def _canonical(wire: Any) -> Any:
    """A form that is the same exactly for values that Python calls equal. Raises ValueError for what equals nothing.

    Sets and dictionaries become sorted digests: nothing that came back is ever hashed as a Python value, so that
    values chosen to collide cost no more than others.
    """
    if isinstance(wire, (bool, int)):
        return _number(int(wire))
    if wire is None or isinstance(wire, str):
        return wire
    if isinstance(wire, list):
        return [_canonical(item) for item in wire]
    ((tag, content),) = wire.items()
    if tag == "i":
        return _number(int(content, 16))
    if tag == "f":
        return _number(float.fromhex(content))
    if tag == "c":
        real, imaginary = map(float.fromhex, content)
        return {"c": [_number(real), _number(imaginary)]} if imaginary else _number(real)
    if tag == "b":
        return {"b": str(content)}
    if tag == "t":
        return {"t": [_canonical(item) for item in content]}
    if tag in ("s", "z"):
        return {"s": sorted(_digest(_canonical(item)) for item in content)}
    if tag == "d":
        return {"d": sorted([_digest(_canonical(key)), _digest(_canonical(item))] for key, item in content)}
    raise ValueError(f"a value that equals nothing: {tag}")


def _number(value: float) -> Any:
    if isinstance(value, int) or (math.isfinite(value) and value == int(value)):
        return {"i": hex(int(value))}
    if math.isnan(value):
        raise ValueError("NaN, which equals nothing")
    return {"f": value.hex()}


def _digest(canonical: Any) -> str:
    return hashlib.sha256(json.dumps(canonical).encode()).hexdigest()


def _is_equal(wire: Any, expected: Any, tolerance: float) -> bool:
    ((tag, content),) = wire.items() if isinstance(wire, dict) else [("", wire)]
    if expected is None or isinstance(expected, (bool, str)):
        return type(wire) is type(expected) and wire == expected
    if isinstance(expected, (int, float)):
        return not isinstance(wire, bool) and _is_equal_number(tag, content, expected, tolerance)
    if isinstance(expected, (list, tuple)):
        if not (isinstance(wire, list) or tag == "t") or len(content) != len(expected):
            return False
        return all(_is_equal(item, wanted, tolerance) for item, wanted in zip(content, expected, strict=True))
    if not isinstance(expected, Mapping) or tag != "d" or len(content) != len(expected):
        return False
    items = {str(key): item for key, item in content if type(key) in (int, str)}
    wanted_items = {str(key): wanted for key, wanted in expected.items()}
    if items.keys() != wanted_items.keys():
        return False
    return all(_is_equal(items[key], wanted, tolerance) for key, wanted in wanted_items.items())


def _is_equal_number(tag: str, content: Any, expected: float, tolerance: float) -> bool:
    if tag == "i":
        value: float = int(content, 16)
    elif tag == "f":
        value = float.fromhex(content)
    elif not tag and isinstance(content, int):
        value = content
    else:
        return False
    if isinstance(expected, int):
        return value == expected
    return math.isclose(value, expected, rel_tol=tolerance) or (math.isnan(value) and math.isnan(expected))


_FRACTION = re.compile(r"[-+]?(?:\d{1,400}\.\d{0,400}|\.\d{1,400}|\d{1,400}(?=[eE]))(?:[eE][-+]?\d{1,3})?")
_NUMBER = re.compile(r"[-+]?(?:\d{1,400}\.?\d{0,400}|\.\d{1,400})(?:[eE][-+]?\d{1,3})?")


def is_expected_output(output: str, expected: str, *, relative_tolerance: float) -> bool:
    """Whether the program wrote what is expected.

    >>> is_expected_output("0.30000000000000004 \\n", "0.3", relative_tolerance=1e-9)
    True
    >>> is_expected_output("50000000000000000", "50000000000000001", relative_tolerance=1e-9)
    False
    """
    lines, wanted_lines = output.rstrip().split("\n"), expected.rstrip().split("\n")
    if len(lines) != len(wanted_lines):
        return False
    for line, wanted_line in zip(lines, wanted_lines, strict=True):
        words, wanted_words = line.split(), wanted_line.split()
        if len(words) != len(wanted_words):
            return False
        for word, wanted in zip(words, wanted_words, strict=True):
            if word != wanted and not _is_close_word(word, wanted, relative_tolerance):
                return False
    return True


def _is_close_word(word: str, wanted: str, tolerance: float) -> bool:
    if not (_FRACTION.fullmatch(wanted) and _NUMBER.fullmatch(word)):
        return False
    return math.isclose(float(word), float(wanted), rel_tol=tolerance)
