import json
import os
from pathlib import Path

import pytest

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.errors import RecipeError, VerifierError
from lydian.verifiers import make_verifier, verify_all
from lydian.verifiers.verifier import bare_problem

DATA = Path(os.environ.get("LYDIAN_DATA", Path(__file__).parents[2] / "../shared/data"))


def outcome(gold: str, text: str, finish: Finish = Finish.STOP, question: str = "", **settings: object) -> Outcome:
    verifier = make_verifier("numeric", **settings)
    return verifier.verify(bare_problem(gold, question=question), text, finish).outcome


@pytest.mark.parametrize(
    "text", ["42", "so $42.", "42!", "42.0", "84/2", "**Answer:** 42 apples", "6 * 7 = 42", "Answer: 6*7 = 42"]
)
def test_ways_to_write_42(text: str) -> None:
    assert outcome("42", text) is Outcome.CORRECT


@pytest.mark.parametrize("text", ["41", "-42", "142", "4.2", "42,000", "42%", "420/100", "42. Then on day 43"])
def test_other_numbers_are_wrong(text: str) -> None:
    assert outcome("42", text) is Outcome.WRONG


@pytest.mark.parametrize("text", ["41 or 42", "#### 42 or 41", "41, 42", "1,2,42", "It is 3:42", "42nd", "none", ""])
def test_a_listing_or_no_number_is_unparsed(text: str) -> None:
    assert outcome("42", text) is Outcome.UNPARSED


def test_cut_off_work_is_truncated_even_if_its_last_number_is_right() -> None:
    assert outcome("42", "6 * 7 = 42 and", Finish.LENGTH) is Outcome.TRUNCATED
    assert outcome("42", "6 * 7 = 41 and", Finish.LENGTH) is Outcome.TRUNCATED
    assert outcome("42", "no number", Finish.ABORT) is Outcome.TRUNCATED


def test_a_marked_answer_counts_in_a_cut_off_completion_once_it_is_complete() -> None:
    assert outcome("42", "#### 42\nNow", Finish.LENGTH) is Outcome.CORRECT
    assert outcome("42", r"\boxed{41}", Finish.LENGTH) is Outcome.WRONG
    assert outcome("4", "#### 4", Finish.LENGTH) is Outcome.TRUNCATED  # 42 may have been on its way


def test_with_a_marker_only_what_follows_it_counts() -> None:
    assert outcome("18", "A: 18", marker="A:") is Outcome.CORRECT
    assert outcome("18", "18", marker="A:") is Outcome.UNPARSED
    assert outcome("18", "A: 17\nso 18", marker="A:") is Outcome.WRONG


def test_the_question_decides_whether_50_percent_is_50() -> None:
    assert outcome("50", "50%", question="There were 100. What percentage is left?") is Outcome.CORRECT
    assert outcome("50", "50%", question="At 20% off, what does it cost in dollars?") is Outcome.WRONG


def test_a_gold_answer_without_one_number_is_an_error_when_checked() -> None:
    for gold in ("many", "3 or 4", "", "1/0"):
        with pytest.raises(VerifierError):
            make_verifier("numeric").check(bare_problem(gold))


def test_settings_are_checked() -> None:
    with pytest.raises(RecipeError):
        make_verifier("numeric", marker=" ")
    with pytest.raises(RecipeError):
        make_verifier("numeric", relative_tolerance=-1)


def test_gsm8k_agrees_with_the_published_labels_of_5276_model_solutions() -> None:
    """The labels are those that come with GSM8K's example solutions; the models write their answer after `A:`."""
    path = DATA / "gsm8k/example_model_solutions.jsonl"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    verifier = make_verifier("gsm8k", marker="A:")
    models = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    items, labels = [], []
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        problem = bare_problem("#### " + row["ground_truth"].rpartition("A:")[2], question=row["question"])
        items += [(problem, row[model]["solution"], Finish.STOP) for model in models]
        labels += [row[model]["is_correct"] for model in models]
    verdicts = verify_all(verifier, items)
    assert len(labels) == 5276
    assert [verdict.is_correct for verdict in verdicts] == labels


def test_every_gold_answer_of_gsm8k_is_read() -> None:
    path = DATA / "gsm8k/test.jsonl"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    verifier = make_verifier("gsm8k")
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        problem = bare_problem(row["answer"], question=row["question"])
        verifier.check(problem)
        assert verifier.verify(problem, row["answer"], Finish.STOP).is_correct
