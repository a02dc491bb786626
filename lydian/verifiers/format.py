"""`format` and `r1_format`: is the completion laid out as asked, whatever it says?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError
from lydian.verifiers.verifier import Example, fingerprint, judged, register


class Format:
    """Each tag stands in the completion exactly once, closed and not empty, in the given order.

    tags          names, without the angle brackets
    is_exclusive  whether text outside the tags is a fault

    Outcomes: CORRECT; TRUNCATED, a fault in a completion that was cut off; else WRONG. Needs no gold answer.
    """

    name = "format"

    def __init__(self, *, tags: Sequence[str] = ("answer",), is_exclusive: bool = False) -> None:
        if isinstance(tags, str) or not tags or not all(re.fullmatch(r"[\w-]+", tag) for tag in tags):
            raise RecipeError(
                where="format.tags",
                given=repr(tags),
                expected='a list of names such as ["think", "answer"]',
                fix="Write each tag's name without brackets.",
            )
        self.tags = tuple(tags)
        self.is_exclusive = is_exclusive
        self.fingerprint = fingerprint(self.name, {"tags": list(self.tags), "is_exclusive": is_exclusive})

    def check(self, problem: Problem) -> None:
        """Any problem will do."""

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        fault = self._fault(text)
        if fault is None:
            return judged(self, Outcome.CORRECT, reason="as asked")
        return judged(self, Outcome.WRONG if finish is Finish.STOP else Outcome.TRUNCATED, reason=fault)

    def _fault(self, text: str) -> str | None:
        end = 0
        for tag in self.tags:
            opening, closing = f"<{tag}>", f"</{tag}>"
            if text.count(opening) != 1 or text.count(closing) != 1:
                return f"{text.count(opening)} {opening} and {text.count(closing)} {closing} instead of one each"
            start, stop = text.index(opening), text.index(closing)
            if start < end or stop < start:
                return f"{opening} is out of order"
            if not text[start + len(opening) : stop].strip():
                return f"{opening} is empty"
            if self.is_exclusive and text[end:start].strip():
                return f"text before {opening}"
            end = stop + len(closing)
        return "text after the last tag" if self.is_exclusive and text[end:].strip() else None


class R1Format:
    """Reasoning, then the answer: `… </think> <answer> … </answer>` and nothing more.

    The prompt usually ends with `<think>`, so the completion may begin inside it; an opening tag may stand at its
    start. Each other tag stands once, the answer is not empty, only white space stands between the tags and after the
    last.

    is_published  the published rule instead: the text has `</think> <answer>` with one blank, and `</answer>` anywhere

    Outcomes: CORRECT; TRUNCATED, a fault in a completion that was cut off; else WRONG. Needs no gold answer.

    Source: DeepSeek-R1, arXiv:2501.12948, table 1; the published rule is that of sail-sg/understand-r1-zero.
    """

    name = "r1_format"
    _LAYOUT = re.compile(r"\s*(?:<think>)?(?:(?!</?think>|</?answer>).)*</think>\s*<answer>(.*)</answer>\s*", re.DOTALL)

    def __init__(self, *, is_published: bool = False) -> None:
        self.is_published = is_published
        self.fingerprint = fingerprint(self.name, {"is_published": is_published})

    def check(self, problem: Problem) -> None:
        """Any problem will do."""

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        if self._is_kept(text):
            return judged(self, Outcome.CORRECT, reason="as asked")
        outcome = Outcome.WRONG if finish is Finish.STOP else Outcome.TRUNCATED
        return judged(self, outcome, reason="not … </think> <answer> … </answer>")

    def _is_kept(self, text: str) -> bool:
        if self.is_published:
            return "</think> <answer>" in text and "</answer>" in text
        match = self._LAYOUT.fullmatch(text)
        return bool(match and match[1].strip() and not re.search(r"</?(?:think|answer)>", match[1]))


register(
    "format",
    Format,
    examples=(
        Example(gold=None, text="so <answer>4</answer>", outcome=Outcome.CORRECT),
        Example(gold=None, text="<answer>4</answer> <answer>5</answer>", outcome=Outcome.WRONG),
        Example(gold=None, text="<answer> </answer>", outcome=Outcome.WRONG),
        Example(gold=None, text="so <answer>4", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
        Example(
            gold=None,
            text="<answer>4</answer><think>2 + 2</think>",
            settings={"tags": ["think", "answer"]},
            outcome=Outcome.WRONG,
        ),
        Example(gold=None, text="so <answer>4</answer>", settings={"is_exclusive": True}, outcome=Outcome.WRONG),
    ),
)
register(
    "r1_format",
    R1Format,
    examples=(
        Example(gold=None, text="2 + 2 is 4 </think>\n<answer>4</answer>", outcome=Outcome.CORRECT),
        Example(gold=None, text="<think>2 + 2</think> <answer>4</answer>", outcome=Outcome.CORRECT),
        Example(gold=None, text="<answer>4</answer>", outcome=Outcome.WRONG),
        Example(gold=None, text="a </think> <answer>4</answer> or 5", outcome=Outcome.WRONG),
        Example(gold=None, text="<answer>4</answer> </think> <answer>7</answer>", outcome=Outcome.WRONG),
        Example(gold=None, text="2 + 2 is", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
        Example(
            gold=None, text="a </think>\n<answer>4</answer>", settings={"is_published": True}, outcome=Outcome.WRONG
        ),
        Example(
            gold=None, text="a </think> <answer>4</answer> b", settings={"is_published": True}, outcome=Outcome.CORRECT
        ),
    ),
)
