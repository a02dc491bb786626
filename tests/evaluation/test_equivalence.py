"""Votes are cast for values, not for spellings."""

from __future__ import annotations

from lydian.evaluation.equivalence import answer_classes
from lydian.evaluation.statistics import maj_at_k


def test_spellings_of_one_number_are_one_class() -> None:
    """7, 7.0 and 14/2 are wrong alike: three votes against two for 8."""
    answers, marks = ["7", "7.0", "14/2", "8", "8"], [False, False, False, True, True]
    classes = answer_classes(answers, marks)
    assert classes[0] == classes[1] == classes[2] and classes[3] == classes[4] == "gold"
    assert maj_at_k(list(zip(classes, marks, strict=True)), 5) == 0
    # voted on as written, 8 would have won with two votes
    assert maj_at_k(list(zip(answers, marks, strict=True)), 5) == 1


def test_correct_answers_are_one_class_however_they_are_written() -> None:
    assert answer_classes(["x + 1", "1 + x", None, " X+2 "], [True, True, False, False]) == [
        "gold",
        "gold",
        None,
        "text x+2",
    ]
