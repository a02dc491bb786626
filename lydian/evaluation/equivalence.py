"""Which extracted answers are the same: the classes that maj@k votes over."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from lydian.verifiers.numbers import find_numbers


def answer_classes(answers: Seq[str | None], is_correct: Seq[bool]) -> list[str | None]:
    """One class name an answer; None stays None, since what was not found does not vote.

    Two answers are one class if they are written alike but for case and blanks, if both are one number of the same
    value, or if both were judged CORRECT: equal to the gold answer, they are equal to each other. The class of a
    written answer is the same whichever sample it comes from.

    >>> answer_classes(["0.5", "1/2", "0.50", None, "x"], [True, True, False, False, False])
    ['gold', 'gold', 'gold', None, 'text x']
    """
    names = [None if answer is None else _canonical(answer) for answer in answers]
    right = {name for name, mark in zip(names, is_correct, strict=True) if mark and name is not None}
    return ["gold" if name in right else name for name in names]


def _canonical(answer: str) -> str:
    text = " ".join(answer.casefold().split())
    numbers = find_numbers(text)
    if len(numbers) == 1 and numbers[0].value is not None and numbers[0].text == text:
        return f"number {numbers[0].value}"
    return f"text {text}"
