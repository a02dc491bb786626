"""Where a reply's steps end: rules by name, and the rule that a set of step-labelled replies follows."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

from lydian.errors import DataError, InputError

STEP_RULES: Mapping[str, re.Pattern[str]] = {
    "line": re.compile(r"\n+"),
    "paragraph": re.compile(r"\n[ \t]*(?:\n[ \t]*)+"),
    "sentence": re.compile(r"(?<=[.!?])\s+"),
    "comma": re.compile(r",\s+"),
}
"""What stands between two steps, by the rule's name; a step keeps what follows it, so that steps join to the reply."""


def split_steps(reply: str, rule: str) -> tuple[str, ...]:
    r"""The steps of a reply; joined they are the reply. Pieces that are blank belong to the step before them.

    rule  line: each line is a step; paragraph: blank lines part steps; sentence: blanks after . ! or ? part them;
          comma: commas before blanks do

    A reply without a single character that is not blank has no steps. Raises InputError for an unknown rule.

    >>> split_steps("\n2 + 3 = 5\n\n5 - 1 = 4\n#### 4", "line")
    ('\n2 + 3 = 5\n\n', '5 - 1 = 4\n', '#### 4')
    >>> split_steps("It is 3.5. Half of it is 1.75.", "sentence")
    ('It is 3.5. ', 'Half of it is 1.75.')
    """
    if rule not in STEP_RULES:
        raise InputError(
            where="the rule that splits steps",
            given=repr(rule),
            expected=f"one of {', '.join(STEP_RULES)}",
            fix="Choose one of these.",
        )
    cuts = [0, *(found.end() for found in STEP_RULES[rule].finditer(reply)), len(reply)]
    steps: list[str] = []
    blank = ""  # before the first step
    for start, end in itertools.pairwise(cuts):
        piece = reply[start:end]
        if piece.strip():
            steps.append(blank + piece)
            blank = ""
        elif steps:
            steps[-1] += piece
        else:
            blank += piece
    return tuple(steps)


def rule_of(replies: Iterable[tuple[str, ...]]) -> str:
    """The first rule that splits every reply into exactly its own steps: the one to split new replies by.

    replies  the steps of each reply

    Raises DataError if there is no such rule, naming the reply that goes furthest.

    >>> rule_of([("2+3=5, ", "5-1=4")])
    'comma'
    """
    failures: dict[str, tuple[int, tuple[str, ...]]] = {}
    all_replies = list(replies)
    for rule in STEP_RULES:
        wrong = next((n for n, steps in enumerate(all_replies) if split_steps("".join(steps), rule) != steps), None)
        if wrong is None:
            return rule
        failures[rule] = (wrong, all_replies[wrong])
    rule, (_, steps) = max(failures.items(), key=lambda item: item[1][0])
    raise DataError(
        where="steps with labels",
        given=f"steps that no rule makes; {rule} comes furthest, and makes {split_steps(''.join(steps), rule)!r:.120} "
        f"of {steps!r:.120}",
        expected=f"steps as one of the rules makes them: {', '.join(STEP_RULES)}",
        fix="Cut the steps where a rule does: replies that are scored later have no marks of their own.",
    )
