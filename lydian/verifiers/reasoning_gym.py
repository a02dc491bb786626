"""`reasoning_gym`: the optional package's own scorer of a task judges the answer, in a worker that can be killed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import MissingExtraError, RecipeError
from lydian.verifiers.reading import NoAnswer, answer_part, marked_answer
from lydian.verifiers.verifier import Example, fingerprint, judged, not_found, register, unreadable_gold
from lydian.verifiers.worker import shared_pool

DUTY = "lydian.verifiers.reasoning_gym:prepare"
MAX_CHARACTERS = 4000
"""A longer answer is not looked at."""

_FUNCTIONS = re.compile(r"\b(?:sin|cos|tan|sinh|cosh|tanh|asin|acos|atan|exp|log|ln|sqrt|abs)\s*\(", re.IGNORECASE)
_CODE = re.compile(r"__|\w\s*\(|[\w)\]'\"]\s*\.\s*[^\W\d]|\b(?:lambda|import|exec|eval)\b")


class ReasoningGym:
    """The answer scores at least so much with the scorer of the task that made the problem: many may be right.

    The answer is the marked one, such as the text in <answer> </answer>, else all that follows the reasoning. Some
    scorers let sympy parse it, which would run code: an answer that calls anything but usual functions (sin, sqrt, …)
    or reads an attribute is not passed on, and UNPARSED.

    at_least     the package's score (0 to 1) from which on it is CORRECT
    cpu_seconds  limit of processor time for one answer, not counting the wait for a free worker; past it: FAILED

    Problems are those of the generator `reasoning_gym`: their metadata say how to make them again. The score is 1 or 0;
    `parts` has the package's as `gym`. Outcomes: UNPARSED, no answer; TRUNCATED, cut off without a marked answer;
    FAILED, no score within the limits; else CORRECT or WRONG.
    """

    name = "reasoning_gym"

    def __init__(self, *, at_least: float = 1.0, cpu_seconds: float = 5.0) -> None:
        if not 0 < at_least <= 1 or not cpu_seconds > 0:
            raise RecipeError(
                where="reasoning_gym",
                given=f"at_least={at_least!r}, cpu_seconds={cpu_seconds!r}",
                expected="a score above 0 and up to 1, and seconds above 0",
                fix="Correct the setting.",
            )
        if importlib.util.find_spec("reasoning_gym") is None:
            raise absent("verifier 'reasoning_gym'")
        self.at_least = at_least
        self.cpu_seconds = cpu_seconds
        settings = {"at_least": at_least, "cpu_seconds": cpu_seconds}
        self.fingerprint = fingerprint(self.name, settings, ("reasoning-gym",))

    def check(self, problem: Problem) -> None:
        wanted = {"task", "index", "settings"}
        if not wanted <= set(problem.metadata):
            expected = f"metadata {', '.join(sorted(wanted))}, as the generator reasoning_gym writes them"
            raise unreadable_gold(problem, self, expected=expected)

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        try:
            answer = _answer(text, finish)
        except NoAnswer as error:
            return not_found(self, finish, str(error))
        if answer == problem.answer:
            return self._scored(answer, 1.0)
        question = {key: problem.metadata.get(key) for key in ("task", "index", "settings")} | {"answer": answer}
        found = shared_pool(DUTY).ask(question, self.cpu_seconds)
        if "fault" in found:
            return judged(self, Outcome.FAILED, answer, found["fault"])
        return self._scored(answer, float(found["score"]))

    def _scored(self, answer: str, score: float) -> Verdict:
        is_right = score >= self.at_least
        return Verdict(
            score=float(is_right),
            outcome=Outcome.CORRECT if is_right else Outcome.WRONG,
            extracted=answer,
            parts={"gym": score},
            reason=f"the task's scorer gives {score:g}",
            verifier=self.fingerprint,
        )


def prepare() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Loads the package and returns what a worker answers a question by: {"score"}."""
    package = importlib.import_module("reasoning_gym")

    @lru_cache(maxsize=64)
    def made(task: str, settings: str) -> Any:
        return package.create_dataset(task, **json.loads(settings))

    def answer(question: Mapping[str, Any]) -> dict[str, Any]:
        dataset = made(question["task"], question["settings"])
        return {"score": float(dataset.score_answer(answer=question["answer"], entry=dataset[question["index"]]))}

    return answer


def absent(where: str) -> MissingExtraError:
    """The error to raise where the package is not installed."""
    return MissingExtraError(
        where=where, given="no package reasoning-gym", expected="it to be installed", fix="pip install reasoning-gym"
    )


def _answer(text: str, finish: Finish) -> str:
    part = answer_part(text)
    marked = marked_answer(part)
    answer = (part if marked is None else marked.text).strip()
    if not answer:
        raise NoAnswer("no answer")
    if len(answer) > MAX_CHARACTERS:
        raise NoAnswer(f"an answer of {len(answer)} characters")
    if finish is not Finish.STOP and not (marked and marked.is_closed):
        raise NoAnswer("the answer may be unfinished")
    if _CODE.search(_FUNCTIONS.sub("(", answer)):
        raise NoAnswer("an answer that reads as code")
    return answer


_LEGS = {"task": "leg_counting", "index": 0, "settings": '{"seed": 0, "size": 1}'}

register(
    "reasoning_gym",
    ReasoningGym,
    examples=(
        Example(gold="4", text="<answer>4</answer>", metadata=_LEGS, outcome=Outcome.CORRECT, extracted="4"),
        Example(gold="4", text="<answer>-1</answer>", metadata=_LEGS, outcome=Outcome.WRONG, extracted="-1"),
        Example(gold="4", text="<answer>open('x')</answer>", metadata=_LEGS, outcome=Outcome.UNPARSED),
    ),
)
