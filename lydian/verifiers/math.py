"""`math`: the completion's final answer equals the gold answer as mathematics."""

from __future__ import annotations

import re

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError
from lydian.verifiers.numbers import are_equal, find_numbers, parse_number
from lydian.verifiers.reading import NoAnswer, answer_part, clean, marked_answer, single_number
from lydian.verifiers.verifier import Example, fingerprint, gold_of, judged, not_found, register, unreadable_gold
from lydian.verifiers.worker import num_workers, shared_pool

MAX_CHARACTERS = 2000
"""A longer answer is not looked at."""

_RELATIVE_TOLERANCE = 5e-12  # agreement to 12 significant digits
_SPAN = re.compile(r"\$\$?([^$]+)\$\$?|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_WORD = re.compile(r"(?<![\\a-zA-Z{])(?!(?:sqrt|sin|cos|tan|log|ln|exp|pi|inf|and|or)\b)[^\W\d_]{2,}")
_UNSPACED = re.compile(r"[\u3040-\u9fff].*\d", re.DOTALL)  # Chinese or Japanese before a number: a sentence, no unit
_EDGES = " \n\t*:=.,;"
_LEAD_IN = re.compile(r"^.*\banswer\s*(?:\bis\b|:|=)\s*", re.IGNORECASE | re.DOTALL)
_WRAPPED_WORDS = re.compile(r"\\(?:text|mbox|textbf|textrm|textnormal)\s*\{([^{}]*)\}")


class Math:
    """The final answer equals the gold answer: as a number, expression, equation, interval, set, tuple, matrix or text.

    The answer is the marked one (`lydian.verifiers.reading` says where). Without a mark it is the whole completion if
    that is no more than an expression, else the last formula or number, whichever ends later.

    Two plain numbers are compared here, exactly (12 digits suffice for a decimal); anything else in a worker process,
    by math-verify and sympy.

    answer_only  the completion is the bare final answer
    cpu_seconds  limit of processor time for one comparison; past it the outcome is FAILED

    Outcomes: UNPARSED, no answer, an empty box, or more than 2000 characters; TRUNCATED, the completion was cut off and
    no answer is marked; FAILED, no verdict within the limits; else CORRECT or WRONG.
    """

    name = "math"

    def __init__(self, *, answer_only: bool = False, cpu_seconds: float = 3.0) -> None:
        if not cpu_seconds > 0:
            raise RecipeError(
                where="math.cpu_seconds",
                given=repr(cpu_seconds),
                expected="a number > 0",
                fix="Give a limit, such as 3.",
            )
        self.answer_only = answer_only
        self.cpu_seconds = cpu_seconds
        self.num_threads = num_workers()
        settings = {"answer_only": answer_only, "cpu_seconds": cpu_seconds}
        packages = ("math-verify", "sympy", "latex2sympy2-extended")
        self.fingerprint = fingerprint(self.name, settings, packages)

    def check(self, problem: Problem) -> None:
        if len(gold_of(problem, self)) > MAX_CHARACTERS:
            raise unreadable_gold(problem, self, expected=f"at most {MAX_CHARACTERS} characters")

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        gold = clean(gold_of(problem, self))
        try:
            answer = self._final_answer(text, finish)
        except NoAnswer as error:
            return not_found(self, finish, str(error))
        known = _compare_numbers(gold, answer, problem.question)
        if known is not None:
            reason = f"{answer} {'=' if known else '≠'} {gold}"
            return judged(self, Outcome.CORRECT if known else Outcome.WRONG, answer, reason)
        comparison = shared_pool().compare(gold, answer, cpu_seconds=self.cpu_seconds)
        if comparison.is_equal is None:
            return judged(self, Outcome.FAILED, answer, comparison.reason)
        return judged(self, Outcome.CORRECT if comparison.is_equal else Outcome.WRONG, answer, comparison.reason)

    def _final_answer(self, text: str, finish: Finish) -> str:
        if self.answer_only:
            answer, is_marked = clean(text[: MAX_CHARACTERS + 1]), True
        else:
            part = answer_part(text)
            marked = marked_answer(part)
            is_marked = marked is not None and (marked.is_closed or finish is Finish.STOP)
            answer = _unwrap(marked.text) if marked else _unmarked(part)
        answer = answer.strip()
        if not answer.strip(_EDGES + "$\\[](){}"):
            raise NoAnswer("no answer")
        if len(answer) > MAX_CHARACTERS:
            raise NoAnswer(f"an answer of {len(answer)} characters")
        if finish is not Finish.STOP and not is_marked:
            raise NoAnswer(f"{answer:.60} may be unfinished work")
        return answer


def _unwrap(marked: str) -> str:
    """What is meant at the mark: the formula or number in a sentence, the answer after a lead-in inside a box."""
    text = _LEAD_IN.sub("", _WRAPPED_WORDS.sub(r"\1", marked)) if _LEAD_IN.match(marked) else marked
    spans = [span for span in _spans(text) if not _is_prose(span)]
    if spans and (_is_prose(text) or len(spans) == 1):
        return spans[0]
    text = re.sub(r"\\?\$|\\[()\[\]]", "", text).strip(_EDGES)
    if _is_prose(_WRAPPED_WORDS.sub("", text)):
        return single_number(text, index=0).text if find_numbers(text) else text
    return text


def _is_prose(text: str) -> bool:
    """Whether this is a sentence rather than a formula, a name, or a number with its unit."""
    return len(_WORD.findall(text)) > 1 or bool(_UNSPACED.search(text))


def _unmarked(part: str) -> str:
    stripped = part.strip()
    is_formula = re.match(r"\\[a-zA-Z]", stripped) or not _is_prose(stripped)
    if len(stripped) <= 200 and "\n" not in stripped and is_formula:
        return _unwrap(stripped)
    spans = [match for match in _SPAN.finditer(part) if not _is_prose(match[0])]
    numbers = find_numbers(part)
    if spans and (not numbers or spans[-1].end() >= numbers[-1].end):
        return _spans(spans[-1][0])[0]
    return single_number(part, index=-1).text


def _spans(text: str) -> list[str]:
    """The formulas between dollars or brackets."""
    return [next(filter(None, groups)).strip() for groups in _SPAN.findall(text)]


def _compare_numbers(gold: str, answer: str, question: str) -> bool | None:
    """Whether two plain numbers are equal; None if they are not plain numbers, or the commas in them could separate."""
    a, b = parse_number(gold), parse_number(answer)
    if a is None or b is None or a.value is None or b.value is None:
        return None
    is_equal = are_equal(b, a, question=question, relative_tolerance=_RELATIVE_TOLERANCE)
    return is_equal if is_equal or "," not in gold + answer else None


register(
    "math",
    Math,
    examples=(
        Example(gold=r"\frac{1}{2}", text=r"\boxed{\frac{2}{4}}", outcome=Outcome.CORRECT, extracted=r"\frac{2}{4}"),
        Example(gold="(r+5)^2", text="The answer is $(r+5)(r+5)$.", outcome=Outcome.CORRECT, extracted="(r+5)(r+5)"),
        Example(gold="4", text=r"\boxed{3}, no, \boxed{4}", outcome=Outcome.CORRECT, extracted="4"),
        Example(gold="4", text=r"\boxed{3} \boxed{4}", outcome=Outcome.WRONG, extracted="3 or 4"),
        Example(gold="4", text=r"\boxed{}", outcome=Outcome.UNPARSED),
        Example(gold="4", text=r"<think>\boxed{4}</think> I cannot say.", outcome=Outcome.UNPARSED),
        Example(gold="4", text="<think> 2 + 2 </think> <answer>4</answer>", outcome=Outcome.CORRECT, extracted="4"),
        Example(gold="4", text="Then x = 4, and", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
        Example(gold="33.3", text=r"\boxed{\frac{100}{3}}", outcome=Outcome.WRONG, extracted=r"\frac{100}{3}"),
        Example(
            gold="2x+4y-3=0",
            text=r"y=-\frac{1}{2}x+\frac{3}{4}",
            settings={"answer_only": True},
            outcome=Outcome.CORRECT,
            extracted=r"y=-\frac{1}{2}x+\frac{3}{4}",
        ),
        Example(
            gold="1",
            text=r"\boxed{9^{9^{9^{9}}}}",
            settings={"cpu_seconds": 0.5},
            outcome=Outcome.FAILED,
            extracted="9^{9^{9^{9}}}",
        ),
    ),
)
