"""`code`: what passes, what is the same value, and that no known trick is paid."""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lydian.data.problems import Message, Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError, VerifierError
from lydian.verifiers import make_verifier, verify_all
from lydian.verifiers.code.child import encode
from lydian.verifiers.code.suite import Call, is_expected, is_expected_output, read_suite
from lydian.verifiers.verifier import bare_problem

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox's layers are Linux's")

DATA = Path(os.environ.get("LYDIAN_DATA", Path(__file__).parents[3] / "../shared/data"))
CASES = Path(__file__).parents[3] / "../shared/cases/graders.jsonl"
ADD = {"entry_point": "add", "tests": ["assert add(1,2)==3", "assert add(5,5)==10"]}
ASIS = {
    "entry_point": "add",
    "test": "def check(candidate):\n    for n in (1, 5):\n        assert candidate(n, n) == 2 * n\n",
}


def problem(tests: dict[str, Any]) -> Problem:
    return Problem(id="p", messages=(Message(role="user", content="Write it."),), metadata=tests)


def grade(tests: dict[str, Any], text: str, finish: Finish = Finish.STOP, **settings: Any) -> Verdict:
    return make_verifier("code", **({"seconds": 5.0} | settings)).verify(problem(tests), text, finish)


CHEATS = {
    "equals all": "class A:\n    def __eq__(self, o): return True\n    __hash__ = None\ndef add(a, b): return A()",
    "number equals all": "class A(int):\n    def __eq__(self, o): return True\ndef add(a, b): return A(0)",
    "frames": "import sys\ndef add(a, b):\n    f = sys._getframe()\n    while f:\n"
    "        for v in list(f.f_locals.values()) + list(f.f_globals.values()):\n"
    "            if hasattr(v, 'append'): v.append('passed')\n        f = f.f_back\n    return 0",
    "search the heap": "import gc\ndef add(a, b):\n"
    "    return next((c.expected for c in gc.get_objects() if hasattr(c, 'expected')), 0)",
    "exit 0": "import sys\nsys.exit(0)",
    "exit 0 in the call": "import os\ndef add(a, b): os._exit(0)",
    "atexit": "import atexit, os\natexit.register(lambda: print('passed'))\ndef add(a, b): raise SystemExit(0)",
    "forged lines": "import os\ndef add(a, b):\n    for n in range(64):\n"
    "        try: os.write(n, b'{\"tests\":\"passed\",\"reason\":\"\"}\\npassed\\n')\n"
    "        except OSError: pass\n    os._exit(0)",
    "forged loads": "import os\nfor n in range(3, 64):\n"
    "    try: os.write(n, b'{\"loaded\":true}\\n{\"value\":0}\\n' * 9)\n    except OSError: pass\nos._exit(0)",
    "patched builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.all = lambda *a: True\n"
    "builtins.AssertionError = None\ndef add(a, b): return 0",
    "patched json": "import sys\nsys.modules.clear()\ndef add(a, b): return 0",
    "raises": "def add(a, b): raise BaseException",
    "error that does not print": "class E(Exception):\n    def __str__(self): raise self\ndef add(a, b): raise E",
    "busy": "def add(a, b):\n    while True:\n        try:\n            while True: pass\n"
    "        except BaseException: pass",
    "sleeps": "import time\ndef add(a, b): time.sleep(1000)",
    "memory": "def add(a, b): return [0] * 10**10",
    "endless list": "def add(a, b):\n    x = []\n    while True: x.append(bytes(1000))",
    "endless output": "def add(a, b):\n    while True: print('x' * 10000)",
    "huge value": "def add(a, b): return 'x' * 10**7",
    "endless replies": "import os\nwhile True:\n    for n in (3, 4, 5, 6):\n        try: os.write(n, b'x' * 1000)\n"
    "        except OSError: pass",
    "fork bomb": "import os\ndef add(a, b):\n    while True:\n        try: os.fork()\n        except OSError: pass",
    "fork and exit": "import os, time\ndef add(a, b):\n    if os.fork() == 0: time.sleep(1000)\n    os._exit(0)",
    "thread": "import threading, time, os\nthreading.Thread(target=lambda: (time.sleep(.2), os._exit(0))).start()\n"
    "def add(a, b): time.sleep(100)",
    "thread that stays": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
    "def add(a, b): return 0",
    "nested": "def add(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "cycle": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "colliding numbers": "def add(a, b): return {i * (2**61 - 1) for i in range(3000)}",
    "huge number": "def add(a, b): return 7 ** 10**5",
    "closes all": "import os\nos.closerange(0, 100)\ndef add(a, b): return 0",
    "crash": "import ctypes\ndef add(a, b): ctypes.string_at(0)",
    "no function": "x = 1",
    "no syntax": "def add(a, b) return a + b",
    "null": "def add(a, b):\n    return 0\0",
}  # fmt: skip


@pytest.mark.parametrize("tests", [ADD, ASIS], ids=["compared here", "run as they are"])
@pytest.mark.parametrize("name", CHEATS)
def test_no_trick_is_paid(name: str, tests: dict[str, Any]) -> None:
    started = time.monotonic()
    verdict = grade(tests, f"```python\n{CHEATS[name]}\n```", seconds=2.0)
    assert verdict.outcome is Outcome.WRONG, verdict.reason
    assert "\n" not in verdict.reason and len(verdict.reason) < 500
    assert time.monotonic() - started < 60  # start-up on a busy machine included


@pytest.mark.parametrize("tests", [ADD, ASIS], ids=["compared here", "run as they are"])
def test_an_honest_program_passes(tests: dict[str, Any]) -> None:
    noisy = (
        "import sys, threading\nprint('hello'); sys.stderr.write('x')\ndef add(a, b):\n    print(a)\n    return a + b"
    )
    method = "class Solution:\n    def add(self, a, b): return a + b"
    for code in ("def add(a, b): return a + b", "add = lambda a, b: a + b", noisy, method):
        verdict = grade(tests, code)
        assert verdict.outcome is Outcome.CORRECT, verdict.reason


def test_the_program_cannot_find_what_is_expected() -> None:
    """It searches all it can reach for 31337, which only the expected value holds."""
    search = (
        "import gc, sys\ndef f(n):\n"
        "    seen = [repr(x) for x in gc.get_objects() if isinstance(x, (dict, list, tuple))]\n"
        "    frame = sys._getframe()\n    while frame:\n"
        "        seen.append(repr(frame.f_locals))\n        frame = frame.f_back\n"
        "    return 31337 if any('31-337'.replace('-', '') in text for text in seen) else 0".replace(
            "31337", "31000 + n * 337"
        )
    )
    for tests in (
        {"cases": [{"args": [1], "expected": 31337}]},
        {"test": "def check(c):\n    assert c(1) - 31337 == 0"},
    ):
        assert grade({"entry_point": "f"} | tests, search).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    "cheat",
    [
        "import os\nos._exit(0)",
        "print('3', flush=True)\nimport os\nos._exit(1)",
        "print(3)\n1/0",
        "while True: print(3)",
        "print('3')\nprint('passed')",
        "import sys\nprint(3); sys.exit('x')",
        "print(3)\nwhile True: pass",
    ],
)
def test_a_program_that_ends_badly_is_wrong(cheat: str) -> None:
    assert grade({"io": [{"stdin": "1 2\n", "stdout": "3\n"}]}, cheat, seconds=2.0).outcome is Outcome.WRONG


def test_programs_on_standard_input() -> None:
    pairs = {"io": [{"stdin": f"{n}\n", "stdout": f"{n + 1}\n"} for n in range(3)]}
    assert grade(pairs, "print(int(input()) + 1)").outcome is Outcome.CORRECT
    assert grade(pairs, "import sys\nprint(int(input()) + 1)\nsys.exit()").outcome is Outcome.CORRECT
    assert grade(pairs, "print(1 if input() == '0' else 2)").reason == "test 3: another output"


def is_equal(value: object, expected: object, *, is_python: bool = False) -> bool:
    call = Call(args=(), kwargs={}, expected=expected, is_python=is_python)
    return is_expected(encode(value), call, relative_tolerance=1e-9)


@pytest.mark.parametrize(
    ("value", "expected", "in_a_case", "in_an_assertion"),
    [
        (1, 1, True, True),
        (True, 1, False, True),
        (1, True, False, True),
        (1.0, 1, True, True),
        (1, 1.0, True, True),
        (0.1 + 0.2, 0.3, True, False),
        (5e16, 50000000000000001, False, False),
        ((1, 2), [1, 2], True, False),
        ([1, 2], [1, 2], True, True),
        ([1, 2], [1, 2, 3], False, False),
        ({"a": 1}, {"a": 1}, True, True),
        ({1: 2}, {"1": 2}, True, False),
        ({"a": 1, "b": 1}, {"a": 1}, False, False),
        ("1", 1, False, False),
        (None, None, True, True),
        (None, False, False, False),
        (2**200, 2**200, True, True),
        (float("nan"), float("nan"), True, False),
        (float("inf"), float("inf"), True, True),
        ("\ud800", "\ud800", True, True),
        ([], {}, False, False),
    ],
)
def test_which_values_are_equal(value: object, expected: object, in_a_case: bool, in_an_assertion: bool) -> None:
    """In a case as `code_tests` says; in an assertion as Python says, which the last column repeats."""
    assert is_equal(value, expected) is in_a_case
    assert is_equal(value, expected, is_python=True) is in_an_assertion


@pytest.mark.parametrize(
    "pair",
    [
        ({1, 2}, {2, 1}),
        ({1, 2}, {1, 3}),
        ((1, [2]), (1, [2])),
        (frozenset("ab"), {"a", "b"}),
        ({1: "a"}, {1.0: "a"}),
        (2 + 0j, 2),
        (b"a", "a"),
        (b"a", b"a"),
        ({(1, 2): {3}}, {(1, 2): {3}}),
        (-0.0, 0),
        (1e300, 10**300),
    ],
)
def test_assertions_compare_as_python_does(pair: tuple[object, object]) -> None:
    assert is_equal(*pair, is_python=True) is (pair[0] == pair[1])


@pytest.mark.parametrize(
    "wire", [{}, {"x": 1}, {"t": 5}, {"i": "zz"}, {"f": 5}, {"d": [1]}, {"o": "A"}, {"f": "0x1p999999"}]
)
@pytest.mark.parametrize("is_python", [True, False])
def test_what_no_encoder_writes_equals_nothing(wire: Any, is_python: bool) -> None:
    for expected in (1, [1], {"a": 1}, "x", None, 1.5):
        call = Call(args=(), kwargs={}, expected=expected, is_python=is_python)
        assert not is_expected(wire, call, relative_tolerance=1e-9)


@pytest.mark.parametrize(
    ("output", "expected", "outcome"),
    [
        ("3", "3\n", True),
        ("1 2 \n3\n\n", "1 2\n3", True),
        ("1\n2", "1 2", False),
        ("0.333333333333", "0.3333333333333", True),
        ("0.33", "0.333333", False),
        ("3.0", "3", False),
        ("3", "3.0", True),
        ("yes", "YES", False),
        ("nan", "1.5", False),
        ("", "", True),
    ],
)
def test_which_outputs_are_equal(output: str, expected: str, outcome: bool) -> None:
    assert is_expected_output(output, expected, relative_tolerance=1e-9) is outcome


PROMPT = 'import math\n\ndef helper(x):\n    return x + 1\n\ndef f(x):\n    """Twice."""\n'
TWICE = {"entry_point": "f", "prompt": PROMPT, "test": "def check(candidate):\n    assert candidate(2) == 4"}


@pytest.mark.parametrize(
    "text",
    [
        "    return 2 * x\n",
        "    return 2 * x\n\ndef g():\n    while",
        "    return 2 * x\n# Test\nprint(f(",
        "    return (\n        2 * x\n)\n",
        "def f(x):\n    return helper(x) + x - 1",
        "```python\n    return 2 * x\n```",
        "```python\ndef f(x):\n    return math.ceil(2 * x)\n```\nFor example:\n```python\nprint(f(2))\n```",
        "<think>```python\ndef f(x): return 0\n```</think>\n```\ndef f(x): return 2 * x\n```",
        "1. So\n   ```py\n   def f(x):\n       return 2 * x\n   ```\n```text\n4\n```",
        "```python\ndef f(x):\n    return 2 * x",
    ],
)
def test_where_the_program_is_found(text: str) -> None:
    verdict = grade(TWICE, text)
    assert verdict.outcome is Outcome.CORRECT, (verdict.reason, verdict.extracted)


@pytest.mark.parametrize(
    ("text", "finish", "outcome"),
    [
        ("", Finish.STOP, Outcome.UNPARSED),
        ("It doubles the number.", Finish.STOP, Outcome.UNPARSED),
        ("<think>def f(x): return 2 * x", Finish.STOP, Outcome.UNPARSED),
        ("```python\n```", Finish.STOP, Outcome.UNPARSED),
        ("x" * 300_000, Finish.STOP, Outcome.UNPARSED),
        ("```python\ndef f(x): return 2 * x", Finish.LENGTH, Outcome.TRUNCATED),
        ("    return 2 * x", Finish.LENGTH, Outcome.TRUNCATED),
        ("    return 2 * x\ndef g", Finish.LENGTH, Outcome.CORRECT),
        ("```python\ndef f(x): return 2 * x\n```\nNow", Finish.LENGTH, Outcome.CORRECT),
        ("    return 2 *", Finish.STOP, Outcome.WRONG),
        ("```python\ndef f(x) return\n```", Finish.STOP, Outcome.WRONG),
    ],
)
def test_without_a_whole_program(text: str, finish: Finish, outcome: Outcome) -> None:
    assert grade(TWICE, text, finish).outcome is outcome


@pytest.mark.parametrize(
    "tests",
    [
        {},
        {"entry_point": "f", "tests": []},
        {"entry_point": "f", "test": "METADATA = {}\ndef check(candidate):\n    pass"},
        {"entry_point": "f", "test": "def check(candidate:"},
        {"entry_point": "not a name", "tests": ["assert f(1) == 1"]},
        {"cases": [{"args": [1], "expected": 1}]},
        {"entry_point": "f", "cases": [{"args": [1]}]},
        {"entry_point": "f", "cases": [{"args": [...], "expected": 1}]},
        {"entry_point": "f", "cases": [{"args": [1], "expected": 1}], "io": [{"stdin": "", "stdout": ""}]},
        {"io": [{"stdin": 1, "stdout": "1"}]},
        {"io": "1"},
    ],
)
def test_tests_that_cannot_be_read_are_an_error_when_checked(tests: dict[str, Any]) -> None:
    with pytest.raises(VerifierError):
        make_verifier("code").check(problem(tests))


@pytest.mark.parametrize("gold", [None, "", "3", "[1]", "{}"])
def test_a_gold_answer_without_tests_is_an_error(gold: str | None) -> None:
    with pytest.raises(VerifierError):
        make_verifier("code").check(bare_problem(gold))


@pytest.mark.parametrize(
    "test",
    [
        "def check(candidate):\n    assert undefined",
        "def check(candidate):\n    raise RuntimeError",
        "def check(candidate):\n    for x in []: assert candidate(x)",
        "def check(candidate):\n    assert candidate(len) == 1",
        "import os\ndef check(candidate):\n    os._exit(0)",
    ],
)
def test_tests_that_break_by_themselves_are_failed_and_not_wrong(test: str) -> None:
    verdict = grade({"entry_point": "f", "test": test}, "def f(x): return 1")
    assert (verdict.outcome, verdict.score) == (Outcome.FAILED, None), verdict.reason


def test_tests_may_expect_an_error() -> None:
    test = "def check(candidate):\n    try: candidate(-1)\n    except ValueError: pass\n    else: assert False"
    tests = {"entry_point": "f", "test": test}
    assert grade(tests, "def f(x):\n    if x < 0: raise ValueError('no')").outcome is Outcome.CORRECT
    assert grade(tests, "def f(x): pass").outcome is Outcome.WRONG


def test_settings_are_checked() -> None:
    for bad in ({"seconds": 0}, {"memory_mib": 1}, {"minimum": ("selinux",)}):
        with pytest.raises(VerifierError):
            make_verifier("code", **bad)
    with pytest.raises(RecipeError):
        make_verifier("code", relative_tolerance=1)


@pytest.mark.skipif(not CASES.is_file(), reason=f"needs {CASES}")
def test_cases_in_which_public_graders_erred() -> None:
    rows = [row for row in map(json.loads, CASES.read_text().splitlines()) if row["kind"] == "code"]
    verifier = make_verifier("code", seconds=3.0)
    verdicts = [verifier.verify(bare_problem(row["gold"]), row["prediction"], Finish.STOP) for row in rows]
    assert [v.is_correct for v in verdicts] == [row["expected"] == "correct" for row in rows]
    assert len(rows) >= 7 and all(v.outcome is not Outcome.FAILED for v in verdicts)


def human_eval() -> list[Problem]:
    path = DATA / "humaneval/HumanEval.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    return [
        Problem(
            id=row["task_id"],
            messages=(Message(role="user", content=row["prompt"]),),
            answer=row["canonical_solution"],
            metadata={key: row[key] for key in ("entry_point", "prompt", "test")},
        )
        for row in rows
    ]


@pytest.mark.slow
def test_human_eval_s_canonical_solutions_are_all_correct() -> None:
    """164 of 164; 142 are compared here and 22 have tests of another shape (counted from their sources)."""
    problems = human_eval()
    verdicts = verify_all(make_verifier("code", seconds=60.0), [(p, p.answer or "", Finish.STOP) for p in problems])
    assert [(p.id, v.reason) for p, v in zip(problems, verdicts, strict=True) if not v.is_correct] == []
    assert len(verdicts) == 164
    assert sum(not read_suite(p).tests for p in problems) == 142


@pytest.mark.slow
def test_human_eval_s_solutions_with_one_thing_changed_are_wrong() -> None:
    """Each returns nothing, so each is wrong; one of every eight problems, of both kinds of tests."""
    items = [(p, "    return None\n", Finish.STOP) for p in human_eval()[::8]]
    verdicts = verify_all(make_verifier("code", seconds=60.0), items)
    assert [v.outcome for v in verdicts] == [Outcome.WRONG] * len(items)
