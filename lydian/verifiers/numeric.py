"""`numeric` and `gsm8k`: the completion's final number against the gold number, in exact arithmetic."""

from __future__ import annotations

import re

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError
from lydian.verifiers.numbers import Number, are_equal, find_numbers
from lydian.verifiers.reading import NoAnswer, answer_part, clean, marked_answer, single_number
from lydian.verifiers.verifier import Example, fingerprint, gold_of, judged, not_found, register, unreadable_gold

_SUM = re.compile(r"^[\s\d.,+\-*/×÷()$%^]*=\s*")
_UNFINISHED_SUM = re.compile(r"\s*(?:[*/×÷^+]|-(?=\s*\d))\s*[\d(]")


class Numeric:
    """The final number of the completion equals the gold number.

    Which number is the final one:
      1. With a `marker`, only what follows its last occurrence counts. Without, `lydian.verifiers.reading` says where
         an answer is marked: an `<answer>` block, a box, `####`, "answer is", "answer:".
      2. After a mark, a sum is skipped to its right side (`3 + 4 = 7`), and the first number counts.
      3. Without any mark (and none required), the last number of the completion counts.
      4. Several different numbers joined by "or", "and" or commas are no answer.

    How numbers are written is said in `lydian.verifiers.numbers`; 50% equals 0.5, and 50 only if the last sentence of
    the question asks for a percentage.

    marker              text that must stand before the answer; None: the rules above
    relative_tolerance  |a − b| ≤ tolerance · max(|a|, |b|) is equal unless both are integers; the default forgives the
                        rounding of floats and nothing else

    Outcomes: UNPARSED, no number or several; TRUNCATED, the completion was cut off and the number is not marked, or
    stands at the very end; else CORRECT or WRONG.
    """

    name = "numeric"

    def __init__(self, *, marker: str | None = None, relative_tolerance: float = 1e-9) -> None:
        if marker is not None and not marker.strip():
            raise _bad_setting("marker", marker, "text, or no marker at all")
        if not 0 <= relative_tolerance < 1:
            raise _bad_setting("relative_tolerance", relative_tolerance, "a number in [0, 1)")
        self.marker = marker
        self.relative_tolerance = relative_tolerance
        self.fingerprint = fingerprint(self.name, {"marker": marker, "relative_tolerance": relative_tolerance})

    def check(self, problem: Problem) -> None:
        self._gold(problem)

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        gold = self._gold(problem)
        try:
            number = self._final_number(text, finish)
        except NoAnswer as error:
            return not_found(self, finish, str(error))
        is_equal = are_equal(number, gold, question=problem.question, relative_tolerance=self.relative_tolerance)
        reason = f"{number.text} {'=' if is_equal else '≠'} {gold.text}"
        return judged(self, Outcome.CORRECT if is_equal else Outcome.WRONG, number.text, reason)

    def _gold(self, problem: Problem) -> Number:
        numbers = find_numbers(clean(self._gold_text(problem)))
        if len(numbers) != 1 or numbers[0].value is None:
            raise unreadable_gold(problem, self, expected="one number")
        return numbers[0]

    def _gold_text(self, problem: Problem) -> str:
        return gold_of(problem, self)

    def _final_number(self, text: str, finish: Finish) -> Number:
        part = answer_part(text)
        answer = marked_answer(part, marker=self.marker)
        if answer is not None:
            result = _SUM.sub("", answer.text)
            number = single_number(result, index=0)
            if _UNFINISHED_SUM.match(result, number.end):
                raise NoAnswer(f"{result:.40} is not worked out")
            is_whole = answer.is_closed or number.end < len(result)
        elif self.marker is None:
            number, is_whole = single_number(part, index=-1), False
        else:
            raise NoAnswer(f"no {self.marker!r}")
        if finish is not Finish.STOP and not is_whole:
            raise NoAnswer(f"{number.text} may be unfinished work")
        return number


class Gsm8k(Numeric):
    """`numeric` with the gold number read after `####`, as in GSM8K's worked solutions (a bare number does too)."""

    name = "gsm8k"

    def _gold_text(self, problem: Problem) -> str:
        return gold_of(problem, self).rpartition("####")[2]


def _bad_setting(name: str, given: object, expected: str) -> RecipeError:
    return RecipeError(where=f"numeric.{name}", given=repr(given), expected=expected, fix="Correct the setting.")


_SHARED = (
    Example(gold="72", text="24 + 48 = 72, so the answer is $72.00.", outcome=Outcome.CORRECT, extracted="72.00"),
    Example(gold="1000", text="She earns 1 000 in total", outcome=Outcome.CORRECT, extracted="1000"),
    Example(gold="2.5", text="The answer is 5/2", outcome=Outcome.CORRECT, extracted="5/2"),
    Example(gold="1234.5", text=r"\boxed{1,234.50}", outcome=Outcome.CORRECT, extracted="1234.50"),
    Example(gold="-3", text="x = −3.", outcome=Outcome.CORRECT, extracted="-3"),
    Example(gold="0.5", text="Answer: 50%", outcome=Outcome.CORRECT, extracted="50%"),
    Example(gold="50", text="Answer: 50%", outcome=Outcome.WRONG, extracted="50%"),
    Example(
        gold="50", text="Answer: 50%", question="What percentage is left?", outcome=Outcome.CORRECT, extracted="50%"
    ),
    Example(gold="42", text="#### 41", outcome=Outcome.WRONG, extracted="41"),
    Example(gold="42", text="The answer is 41 or 42.", outcome=Outcome.UNPARSED),
    Example(gold="42", text="#### 41\n#### 42", outcome=Outcome.UNPARSED),
    Example(gold="42", text="I do not know.", outcome=Outcome.UNPARSED),
    Example(gold="42", text="First, 6 * 7 = 42, then", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
    Example(gold="4", text="The answer is 4", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
    Example(gold="4", text="The answer is 4.\nNow let", finish=Finish.LENGTH, outcome=Outcome.CORRECT, extracted="4"),
    Example(gold="4", text="It is 4.", settings={"marker": "####"}, outcome=Outcome.UNPARSED),
    Example(
        gold="0.6666666667",
        text="#### 0.6667",
        settings={"relative_tolerance": 1e-3},
        outcome=Outcome.CORRECT,
        extracted="0.6667",
    ),
)

register("numeric", Numeric, examples=_SHARED)
register(
    "gsm8k",
    Gsm8k,
    examples=(
        *_SHARED,
        Example(gold="3 * 6 = <<3*6=18>>18\n#### 18", text="A: 18", outcome=Outcome.CORRECT, extracted="18"),
        Example(
            gold="#### 1,008", text="#### 1008\nQuestion: and 2 + 2?\n#### 4", outcome=Outcome.CORRECT, extracted="1008"
        ),
    ),
)
