"""`code`: a completion's program against tests, run where it can neither see what is expected nor write the verdict.

The program runs in a process of its own (see `lydian.verifiers.code.sandbox`) that is sent arguments or standard input
and gives back plain data. What it must give is never sent there; the comparison is made here. So nothing that it
returns, raises, prints, patches or ends with can be more than a value that is right or is not.

It runs with the standard library alone. Tests cannot see a changed argument, or an object that is no plain data.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError, VerifierError
from lydian.verifiers.code.answer import Program, read_program
from lydian.verifiers.code.child import encode, loads
from lydian.verifiers.code.probe import DEFAULT_MINIMUM, working_layers
from lydian.verifiers.code.sandbox import Ended, Limits, SandboxBroken, Sandboxed
from lydian.verifiers.code.suite import Suite, is_expected, is_expected_output, read_suite
from lydian.verifiers.reading import NoAnswer
from lydian.verifiers.verifier import Example, fingerprint, judged, not_found, register

_TESTS_LIMITS = {"output_kib": 64 << 10}
_NOT_CODE = ("SyntaxError", "IndentationError", "TabError")


class Code:
    """The program of the completion passes all tests of the problem.

    Where the tests stand, and when values are equal, is said in `lydian.verifiers.code.suite`; which program a
    completion gives in `lydian.verifiers.code.answer`.

    seconds             wall-clock time for all calls of one program, or for one run on standard input
    memory_mib          address space of the program
    output_kib          everything the program may return or print
    relative_tolerance  |a − b| ≤ tolerance · max(|a|, |b|) is equal where a case expects a float
    minimum             the layers of the sandbox that must work, out of `lydian.verifiers.code.probe.LAYERS`

    Outcomes: UNPARSED, no program; TRUNCATED, cut off before one was complete; WRONG also for whatever the program does
    to itself (an error, an exit, too much time, memory or output); FAILED if the sandbox or the tests themselves broke.
    The fingerprint holds Python's version and not the layers: they protect the machine, not the verdict.

    Raises VerifierError where the minimum does not work. `check` raises it for a problem whose tests cannot be read.
    """

    name = "code"

    def __init__(
        self,
        *,
        seconds: float = 10.0,
        memory_mib: int = 512,
        output_kib: int = 1024,
        relative_tolerance: float = 1e-9,
        minimum: tuple[str, ...] = DEFAULT_MINIMUM,
    ) -> None:
        if not 0 <= relative_tolerance < 1:
            raise RecipeError(
                where="code.relative_tolerance",
                given=repr(relative_tolerance),
                expected="a number in [0, 1)",
                fix="Correct the setting.",
            )
        self.limits = Limits(seconds=seconds, memory_mib=memory_mib, output_kib=output_kib)
        self.relative_tolerance = relative_tolerance
        self.layers = working_layers(minimum)
        self.num_threads = len(os.sched_getaffinity(0))
        settings = [seconds, memory_mib, output_kib, relative_tolerance, platform.python_version()]
        self.fingerprint = fingerprint(self.name, {"code": settings})

    def check(self, problem: Problem) -> None:
        self._suite(problem)

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        suite = self._suite(problem)
        try:
            program = read_program(text, finish, suite)
        except NoAnswer as error:
            return not_found(self, finish, str(error))
        try:
            outcome, reason = self._on_streams(program, suite) if suite.io else self._by_calls(program, suite)
        except SandboxBroken as error:
            outcome, reason = Outcome.FAILED, f"the sandbox broke: {error}"
        reason = " ".join(reason.split())
        if outcome is Outcome.WRONG and program.is_bare and reason.startswith(_NOT_CODE):
            return not_found(self, finish, f"no code: {reason}")
        return judged(self, outcome, program.code, reason)

    def _suite(self, problem: Problem) -> Suite:
        try:
            return read_suite(problem)
        except (ValueError, RecursionError) as error:
            raise VerifierError(
                where=f"problem {problem.id!r}, verifier 'code'",
                given=str(error),
                expected="tests in its metadata, or in its answer as a JSON object",
                fix="See help(lydian.verifiers.code.suite) for the format.",
            ) from error

    def _on_streams(self, program: Program, suite: Suite) -> tuple[Outcome, str]:
        config = {"kind": "program", "source": program.source}
        for number, (stdin, expected) in enumerate(suite.io, start=1):
            limits = replace(self.limits, output_kib=self.limits.output_kib + 2 * len(expected.encode()) // 1024)
            with Sandboxed(config, limits=limits, layers=self.layers, stdin=stdin.encode()) as process:
                try:
                    code = process.wait()
                except Ended as error:
                    return Outcome.WRONG, f"test {number}: {error}"
                if code != 0:
                    return Outcome.WRONG, process.error_line() or f"test {number}: exit code {code}"
                output = process.output["stdout"].decode("utf-8", "replace")
            if not is_expected_output(output, expected, relative_tolerance=self.relative_tolerance):
                return Outcome.WRONG, f"test {number}: another output"
        return Outcome.CORRECT, f"{len(suite.io)} tests passed"

    def _by_calls(self, program: Program, suite: Suite) -> tuple[Outcome, str]:
        config = {"kind": "calls", "source": program.source, "entry_point": suite.entry_point}
        if not suite.tests:
            with Sandboxed(config, limits=self.limits, layers=self.layers) as process:
                return self._answers(process, suite)
        tests = {"kind": "tests", "setup": suite.preamble, "source": suite.tests, "entry_point": suite.entry_point}
        limits = replace(self.limits, seconds=2 * self.limits.seconds + 10, **_TESTS_LIMITS)
        with (
            Sandboxed(tests, limits=limits, layers=self.layers) as judge,
            Sandboxed(config, limits=self.limits, layers=self.layers) as process,
        ):
            outcome, reason = self._answers(process, suite)
            return _relayed(judge, process) if outcome is Outcome.CORRECT else (outcome, reason)

    def _answers(self, process: Sandboxed, suite: Suite) -> tuple[Outcome, str]:
        """Loads the program and makes the calls whose results are compared here."""
        try:
            loaded = _reply(process)
            if "loaded" not in loaded:
                return Outcome.WRONG, _error_text(loaded)
            for number, call in enumerate(suite.calls, start=1):
                process.send({"args": encode(list(call.args)), "kwargs": encode(dict(call.kwargs))})
                reply = _reply(process)
                if "value" not in reply:
                    return Outcome.WRONG, f"test {number}: {_error_text(reply)}"
                if not is_expected(reply["value"], call, relative_tolerance=self.relative_tolerance):
                    return Outcome.WRONG, f"test {number}: another value{_opaque_text(reply['value'])}"
        except Ended as error:
            return Outcome.WRONG, f"the program: {error}"
        return Outcome.CORRECT, f"{len(suite.calls)} tests passed"


def _relayed(judge: Sandboxed, process: Sandboxed) -> tuple[Outcome, str]:
    """Lets tests in one process call the program in another, and gives the tests' result."""
    while True:
        try:
            message = loads(judge.receive())
        except (Ended, ValueError) as error:
            return Outcome.FAILED, f"the tests themselves: {error}"
        if "tests" in message:
            outcome = {"passed": Outcome.CORRECT, "failed": Outcome.WRONG}.get(message["tests"], Outcome.FAILED)
            return outcome, message["reason"] or "the tests passed"
        process.send(message)
        try:
            judge.send(_reply(process))
        except Ended as error:
            return Outcome.WRONG, f"the program: {error}"


def _reply(process: Sandboxed) -> dict[str, Any]:
    """What the program's process replied: loaded, value or error. Raises Ended for anything else."""
    try:
        reply = loads(process.receive())
    except (ValueError, RecursionError) as error:
        raise Ended(f"a forged reply: {error}") from error
    if isinstance(reply, dict):
        if reply.keys() in ({"loaded"}, {"value"}):
            return reply
        if reply.keys() == {"error", "text"} and all(isinstance(text, str) for text in reply.values()):
            return reply
    raise Ended("a forged reply")


def _error_text(reply: dict[str, Any]) -> str:
    return f"{reply.get('error', 'a forged reply')!s:.80}: {reply.get('text', '')!s:.200}"


def _opaque_text(wire: Any) -> str:
    return f", a {wire['o']!s:.80}, which is no plain data" if isinstance(wire, dict) and "o" in wire else ""


def _function(*tests: str) -> str:
    import json

    return json.dumps({"entry_point": "add", "tests": list(tests)})


_ADD: Sequence[str] = ("assert add(1, 2) == 3", "assert add(5, 5) == 10")
_RIGHT = "def add(a, b):\n    return a + b"
_SUM = '{"stdin": "1 2\\n", "stdout": "3\\n"}'

register(
    "code",
    Code,
    examples=(
        Example(gold=_function(*_ADD), text=_RIGHT, outcome=Outcome.CORRECT, extracted=_RIGHT),
        Example(
            gold=_function("assert abs(add(0.1, 0.2) - 0.3) < 1e-9"),
            text=f"<think>easy</think>So:\n```python\n{_RIGHT}\n```\nDone.",
            finish=Finish.LENGTH,
            outcome=Outcome.CORRECT,
            extracted=_RIGHT,
        ),
        Example(
            gold=_function(*_ADD),
            text="def add(a, b): return 3",
            outcome=Outcome.WRONG,
            extracted="def add(a, b): return 3",
        ),
        Example(
            gold=_function(*_ADD),
            text="import os; os._exit(0)",
            outcome=Outcome.WRONG,
            extracted="import os; os._exit(0)",
        ),
        Example(gold=_function(*_ADD), text=f"```python\n{_RIGHT}", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
        Example(gold=_function(*_ADD), text="Add the two numbers.", outcome=Outcome.UNPARSED),
        Example(
            gold=_SUM,
            text="print(sum(map(int, open(0).read().split())))",
            outcome=Outcome.CORRECT,
            extracted="print(sum(map(int, open(0).read().split())))",
        ),
        Example(gold=_SUM, text="print(4)", outcome=Outcome.WRONG, extracted="print(4)"),
    ),
)
