r"""The two reward functions of Stanford CS336's assignment 5, on Lydian's verifiers. Needs `lydian[math]`.

The layout rules are the course's to the letter: the exact string `</think> <answer>`, all text after the last
`<answer>`, the last `\boxed{…}`. Answers are compared by the `math` verifier, under three rules of the course's grader:
percent signs count for nothing; if one side is an integer the other must be that integer, written as one number (71+1
is not 72); two fractions must be the same fraction (2/4 is not 1/2).

What differs from the course's grader:
- Any unit or noun after a number is left out of the comparison, not the grader's list of words alone: `72 dollars` and
  `72 clips`, which it refuses for 72, are right here.
- Expressions that it refuses to compare (`^{`, three letters or more) are compared here, so that `1+x^{2}` is
  `x^{2}+1`; sets, intervals, equations and matrices are compared as such.
- A comparison runs in another process under a limit of processor time; past it the answer counts as wrong.
- `fast` changes nothing: there is one way to compare.
- A ground truth without any text raises VerifierError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from functools import cache

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.verifiers.format import R1Format
from lydian.verifiers.math.math import Math
from lydian.verifiers.numbers import Number, find_numbers, parse_number
from lydian.verifiers.verifier import bare_problem

GroundTruth = str | int | float | Seq[str]
"""The short answer, or several of which any may match; one in a box is unwrapped."""

_FRACTION = re.compile(r"\s*(-?)\s*(?:\\[dt]?frac\{(\d+)\}\{(\d+)\}|(\d+)\s*/\s*(\d+))\s*")


def r1_zero_reward_fn(response: str, ground_truth: GroundTruth, fast: bool = True) -> dict[str, float]:
    r"""format_reward, answer_reward and reward, each 0 or 1, of a response such as `… </think> <answer> 72 </answer>`.

    Format: `</think> <answer>` with one blank, and `</answer>` anywhere. The answer is what follows the last `<answer>`
    without closing tags; if it has a box, the last `\boxed{…}` in it. reward is answer_reward; without the format both
    are 0. The module's docstring says in which cases the grading differs from the course's.

    >>> r1_zero_reward_fn("48 + 24 </think> <answer> 72 </answer>", "72")
    {'format_reward': 1.0, 'answer_reward': 1.0, 'reward': 1.0}
    >>> r1_zero_reward_fn("48 + 24 </think><answer> 72 </answer>", "72")["format_reward"]
    0.0
    """
    if _layout().verify(bare_problem(None), response, Finish.STOP).outcome is not Outcome.CORRECT:
        return _rewards(has_format=False, is_right=False)
    answer: str | None = response.rpartition("<answer>")[2].replace("</answer>", "")
    if "\\boxed" in (answer or ""):
        answer = _last_box(answer or "")
    return _rewards(has_format=True, is_right=answer is not None and _is_right(answer, ground_truth))


def question_only_reward_fn(response: str, ground_truth: GroundTruth, fast: bool = True) -> dict[str, float]:
    r"""The same three rewards for a response that ends in a box: the last `\boxed{…}`; 0 everywhere without one.

    >>> question_only_reward_fn(r"So it is \boxed{72}.", "72")
    {'format_reward': 1.0, 'answer_reward': 1.0, 'reward': 1.0}
    """
    answer = _last_box(response)
    return _rewards(has_format=answer is not None, is_right=answer is not None and _is_right(answer, ground_truth))


def _rewards(*, has_format: bool, is_right: bool) -> dict[str, float]:
    return {"format_reward": float(has_format), "answer_reward": float(is_right), "reward": float(is_right)}


def _is_right(answer: str, ground_truth: GroundTruth) -> bool:
    golds = [str(ground_truth)] if isinstance(ground_truth, str | int | float) else ground_truth
    return any(_matches(answer, gold) for gold in golds)


def _matches(answer: str, gold: str) -> bool:
    if "\\boxed" in gold:
        gold = _last_box(gold) or gold
    answer, gold = (re.sub(r"\\?%", "", side) for side in (answer, gold))
    if not _are_written_alike(answer, gold):
        return False
    return _math().verify(bare_problem(gold), answer, Finish.STOP).outcome is Outcome.CORRECT


def _are_written_alike(answer: str, gold: str) -> bool:
    """False where an integer stands against anything but that integer, or a fraction against another fraction."""
    fractions = [_FRACTION.fullmatch(side) for side in (answer, gold)]
    if all(fractions):
        written = [[group for group in match.groups() if group is not None] for match in fractions if match]
        return written[0] == written[1]
    for one, other in ((answer, gold), (gold, answer)):
        number, numbers = parse_number(one), find_numbers(other)
        if number is not None and _is_integer(number):
            return len(numbers) == 1 and _is_integer(numbers[0]) and numbers[0].value == number.value
    return True


def _is_integer(number: Number) -> bool:
    """Whether it is an integer and written as one, not as a fraction."""
    is_fraction = "/" in number.text or "frac" in number.text
    return number.value is not None and number.value.denominator == 1 and not is_fraction


def _last_box(text: str) -> str | None:
    r"""What the last `\boxed{…}` holds; None without one, or if its braces do not close."""
    _, found, rest = text.rpartition("\\boxed")
    depth = 0
    for place, character in enumerate(rest if found and rest.startswith("{") else ""):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return rest[1:place]
    return None


@cache
def _layout() -> R1Format:
    return R1Format(is_published=True)


@cache
def _math() -> Math:
    return Math(answer_only=True)
