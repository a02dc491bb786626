"""`pattern`: does a regular expression match the completion? For formats that no tags mark."""

from __future__ import annotations

import re

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError
from lydian.verifiers.verifier import Example, fingerprint, judged, register

LONGEST = 20_000
"""Characters from the end that are searched: a backtracking pattern must not hang on a huge completion."""


class Pattern:
    r"""The pattern is found in the completion (the first group, if it has one, is what is extracted).

    pattern  a regular expression, searched with `.` matching line breaks

    Outcomes: CORRECT; TRUNCATED, no match in a completion that was cut off; else WRONG. Needs no gold answer.

    Example: `Pattern(pattern=r"####\s*(-?\d+)\s*$")` asks for a last line such as `#### 72`.
    """

    name = "pattern"

    def __init__(self, *, pattern: str = r"####\s*(-?\d[\d,.]*)\s*$") -> None:
        try:
            self._pattern = re.compile(pattern, re.DOTALL)
        except re.error as error:
            raise RecipeError(
                where="pattern.pattern", given=f"{pattern!r} ({error})", expected="a regular expression", fix="Mend it."
            ) from error
        self.fingerprint = fingerprint(self.name, {"pattern": pattern})

    def check(self, problem: Problem) -> None:
        """Any problem will do."""

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        found = self._pattern.search(text[-LONGEST:])
        if found is None:
            return judged(self, Outcome.WRONG if finish is Finish.STOP else Outcome.TRUNCATED, reason="no match")
        return judged(self, Outcome.CORRECT, extracted=found.group(found.re.groups and 1), reason="matches")


register(
    "pattern",
    Pattern,
    examples=(
        Example(gold=None, text="2+3=5 #### 5", outcome=Outcome.CORRECT, extracted="5"),
        Example(gold=None, text="2+3=5", outcome=Outcome.WRONG),
        Example(gold=None, text="#### 5 and so on", outcome=Outcome.WRONG),
    ),
)
