"""`exact`, `contains` and `regex`: answers compared as text, under a normalisation that the settings state."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from typing import Any, Literal

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import MissingExtraError, RecipeError
from lydian.verifiers.reading import NoAnswer, after_reasoning, answer_part, marked_answer
from lydian.verifiers.verifier import (
    Example,
    fingerprint,
    gold_of,
    judged,
    not_found,
    register,
    unreadable_gold,
)

MAX_CHARACTERS = 100_000
"""Only this many characters at the end of a reply are searched."""

_EDGES = " \t\n.,;:!?\"'“”‘’`*_。"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.IGNORECASE)


def normalised(text: str, *, ignore_case: bool, ignore_punctuation: bool, ignore_articles: bool) -> str:
    """NFKC, single blanks, no quotes, marks or punctuation at the edges; then what else is to be ignored.

    ignore_case         casefolded
    ignore_punctuation  without any character of Unicode's punctuation and symbol classes
    ignore_articles     without "a", "an", "the"

    Source: Rajpurkar et al., SQuAD, arXiv:1606.05250, section 6.1 (all three together are its normalisation).

    >>> normalised("“The  Eiffel-Tower.”", ignore_case=True, ignore_punctuation=True, ignore_articles=True)
    'eiffeltower'
    """
    result = unicodedata.normalize("NFKC", text)
    if ignore_case:
        result = result.casefold()
    if ignore_punctuation:
        result = "".join(char for char in result if unicodedata.category(char)[0] not in "PS")
    if ignore_articles:
        result = _ARTICLES.sub(" ", result)
    return " ".join(result.split()).strip(_EDGES)


class _Text(ABC):
    """Settings that `exact` and `contains` share.

    ignore_case         upper and lower case are equal
    ignore_punctuation  punctuation and symbols do not count (C and C++ are then equal)
    ignore_articles     "a", "an", "the" do not count
    alternatives        text between alternative gold answers, any of which will do; None: the gold is one answer
    """

    name = ""

    def __init__(
        self,
        *,
        ignore_case: bool = True,
        ignore_punctuation: bool = False,
        ignore_articles: bool = False,
        alternatives: str | None = None,
        **others: Any,
    ) -> None:
        if alternatives is not None and not alternatives:
            raise RecipeError(
                where=f"{self.name}.alternatives",
                given="''",
                expected='text such as "|"',
                fix="Leave it out if there are no alternatives.",
            )
        self.rules = {
            "ignore_case": ignore_case,
            "ignore_punctuation": ignore_punctuation,
            "ignore_articles": ignore_articles,
        }
        self.alternatives = alternatives
        self.fingerprint = fingerprint(self.name, {**self.rules, "alternatives": alternatives, **others})

    def check(self, problem: Problem) -> None:
        self._golds(problem)

    @abstractmethod
    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict: ...

    def _golds(self, problem: Problem) -> list[str]:
        gold = gold_of(problem, self)
        golds = [self._norm(each) for each in (gold.split(self.alternatives) if self.alternatives else [gold])]
        if not all(golds):
            raise unreadable_gold(problem, self, expected="text that the normalisation leaves something of")
        return golds

    def _norm(self, text: str) -> str:
        return normalised(text, **self.rules)


class Exact(_Text):
    """The answer equals the gold answer as normalised text.

    The answer is the marked one (`lydian.verifiers.reading` says where), without a mark the whole reply. Normalised:
    NFKC, single blanks, no quotes or punctuation at the edges, and what the settings name.

    whole_reply  marks do not count: the whole reply is the answer

    Outcomes: UNPARSED, nothing is left of the answer; TRUNCATED, cut off before its end; else CORRECT or WRONG.
    """

    name = "exact"

    def __init__(
        self,
        *,
        whole_reply: bool = False,
        ignore_case: bool = True,
        ignore_punctuation: bool = False,
        ignore_articles: bool = False,
        alternatives: str | None = None,
    ) -> None:
        super().__init__(
            ignore_case=ignore_case,
            ignore_punctuation=ignore_punctuation,
            ignore_articles=ignore_articles,
            alternatives=alternatives,
            whole_reply=whole_reply,
        )
        self.whole_reply = whole_reply

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        golds = self._golds(problem)
        try:
            part = after_reasoning(text)[-MAX_CHARACTERS:] if self.whole_reply else answer_part(text)
            marked = None if self.whole_reply else marked_answer(part)
            answer = self._norm(marked.text if marked else part)
            if not answer:
                raise NoAnswer("an empty answer")
            if finish is not Finish.STOP and not (marked and marked.is_closed):
                raise NoAnswer("the answer may be unfinished")
        except NoAnswer as error:
            return not_found(self, finish, str(error))
        is_equal = answer in golds
        reason = f"{answer[:60]!r} {'=' if is_equal else '≠'} {golds[0][:60]!r}"
        return judged(self, Outcome.CORRECT if is_equal else Outcome.WRONG, answer, reason)


class Contains(_Text):
    """The gold answer occurs in the reply, as normalised text and as whole words.

    Limits: a reply that lists many candidates, or denies the gold, contains it too; `max_words` bounds the first.

    max_words    a longer reply is WRONG; None: no bound
    whole_words  "art" does not occur in "smart"

    Outcomes: UNPARSED, an empty reply; TRUNCATED, cut off and not found; else CORRECT or WRONG.
    """

    name = "contains"

    def __init__(
        self,
        *,
        max_words: int | None = None,
        whole_words: bool = True,
        ignore_case: bool = True,
        ignore_punctuation: bool = False,
        ignore_articles: bool = False,
        alternatives: str | None = None,
    ) -> None:
        if max_words is not None and max_words < 1:
            raise RecipeError(
                where="contains.max_words", given=repr(max_words), expected="an integer ≥ 1", fix="Correct the setting."
            )
        super().__init__(
            ignore_case=ignore_case,
            ignore_punctuation=ignore_punctuation,
            ignore_articles=ignore_articles,
            alternatives=alternatives,
            max_words=max_words,
            whole_words=whole_words,
        )
        self.max_words = max_words
        self.whole_words = whole_words

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        golds = self._golds(problem)
        try:
            reply = self._norm(after_reasoning(text)[-MAX_CHARACTERS:])
            if not reply:
                raise NoAnswer("an empty reply")
            found = next((gold for gold in golds if self._pattern(gold).search(reply)), None)
            if found is None and finish is not Finish.STOP:
                raise NoAnswer("not found so far")
        except NoAnswer as error:
            return not_found(self, finish, str(error))
        num_words = len(reply.split())
        if self.max_words is not None and num_words > self.max_words:
            return judged(self, Outcome.WRONG, found, f"{num_words} words, more than {self.max_words}")
        reason = f"{'no ' if found is None else ''}{(found or golds[0])[:60]!r}"
        return judged(self, Outcome.WRONG if found is None else Outcome.CORRECT, found, reason)

    def _pattern(self, gold: str) -> re.Pattern[str]:
        left = r"(?<!\w)" if self.whole_words and gold[0].isalnum() else ""
        right = r"(?!\w)" if self.whole_words and gold[-1].isalnum() else ""
        return re.compile(left + re.escape(gold) + right)


class Regex:
    r"""The reply matches the regular expression that is the problem's gold answer.

    To ask for one layout of all problems, use `pattern`. The `regex` package matches, since it can give up in time.

    where        "search": anywhere in the reply; "full": the whole reply, blanks at its ends aside
    ignore_case  upper and lower case are equal
    cpu_seconds  limit of processor time for one match; past it the outcome is FAILED

    The first group, if the expression has one, is what is extracted. Outcomes: TRUNCATED, no match in a completion that
    was cut off; UNPARSED, an empty reply; else CORRECT or WRONG.
    """

    name = "regex"

    def __init__(
        self, *, where: Literal["search", "full"] = "search", ignore_case: bool = False, cpu_seconds: float = 1.0
    ) -> None:
        if where not in ("search", "full") or not cpu_seconds > 0:
            raise RecipeError(
                where="regex",
                given=f"where={where!r}, cpu_seconds={cpu_seconds!r}",
                expected='where "search" or "full", and seconds > 0',
                fix="Correct the setting.",
            )
        self.where = where
        self.ignore_case = ignore_case
        self.cpu_seconds = cpu_seconds
        settings = {"where": where, "ignore_case": ignore_case, "cpu_seconds": cpu_seconds}
        self.fingerprint = fingerprint(self.name, settings, ("regex",))

    def check(self, problem: Problem) -> None:
        self._compiled(problem)

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        pattern = self._compiled(problem)
        try:
            reply = after_reasoning(text)[-MAX_CHARACTERS:].strip()
            if not reply:
                raise NoAnswer("an empty reply")
            match = (pattern.search if self.where == "search" else pattern.fullmatch)(reply, timeout=self.cpu_seconds)
            if match is None and finish is not Finish.STOP:
                raise NoAnswer("no match so far")
        except TimeoutError:
            return judged(self, Outcome.FAILED, reason=f"no verdict within {self.cpu_seconds:g} s of processor time")
        except NoAnswer as error:
            return not_found(self, finish, str(error))
        if match is None:
            return judged(self, Outcome.WRONG, reason="no match")
        return judged(self, Outcome.CORRECT, match.group(pattern.groups and 1), "matches")

    def _compiled(self, problem: Problem) -> Any:
        try:
            import regex  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingExtraError(
                where="verifier 'regex'",
                given="no package regex",
                expected="it to be installed",
                fix="pip install regex",
            ) from error
        try:
            return regex.compile(gold_of(problem, self), regex.DOTALL | (regex.IGNORECASE if self.ignore_case else 0))
        except regex.error as error:
            raise unreadable_gold(problem, self, expected=f"a regular expression ({error})") from error


register(
    "exact",
    Exact,
    examples=(
        Example(gold="Paris", text="The answer is paris.", outcome=Outcome.CORRECT, extracted="paris"),
        Example(gold="Paris", text="Paris", outcome=Outcome.CORRECT, extracted="paris"),
        Example(gold="Paris", text="<think>Paris</think>Rome", outcome=Outcome.WRONG, extracted="rome"),
        Example(gold="Paris", text="paris", settings={"ignore_case": False}, outcome=Outcome.WRONG, extracted="paris"),
        Example(gold="Paris", text=" . ", outcome=Outcome.UNPARSED),
        Example(gold="Paris", text="Par", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
        Example(
            gold="NYC|New York",
            text="New York",
            settings={"alternatives": "|"},
            outcome=Outcome.CORRECT,
            extracted="new york",
        ),
    ),
)
register(
    "contains",
    Contains,
    examples=(
        Example(gold="Paris", text="It lies in Paris, France.", outcome=Outcome.CORRECT, extracted="paris"),
        Example(gold="art", text="So smart", outcome=Outcome.WRONG),
        Example(
            gold="Paris", text="Rome, Paris, Oslo", settings={"max_words": 2}, outcome=Outcome.WRONG, extracted="paris"
        ),
        Example(gold="Paris", text=" ", outcome=Outcome.UNPARSED),
        Example(gold="Paris", text="It lies in", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
    ),
)
register(
    "regex",
    Regex,
    examples=(
        Example(gold=r"total: (\d+)", text="The total: 12.", outcome=Outcome.CORRECT, extracted="12"),
        Example(gold=r"\d+", text="<think>12</think>none", outcome=Outcome.WRONG),
        Example(gold=r"\d+", text="a 12", settings={"where": "full"}, outcome=Outcome.WRONG),
        Example(gold="(a|aa)+$", text="a" * 60 + "b", settings={"cpu_seconds": 0.2}, outcome=Outcome.FAILED),
    ),
)
