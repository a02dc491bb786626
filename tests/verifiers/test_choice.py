import pytest

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.errors import RecipeError, VerifierError
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import bare_problem


def outcome(gold: str, text: str, finish: Finish = Finish.STOP) -> Outcome:
    return make_verifier("choice").verify(bare_problem(gold), text, finish).outcome


@pytest.mark.parametrize(
    "text",
    [
        "B",
        "b",
        "(B)",
        "B. blue",
        "The answer is b",
        "Answer: option B",
        "**Answer:** B",
        r"$\boxed{B}$",
        r"\boxed{\text{B}}",
        "<think>A</think>B",
        "<answer>B</answer>",
        "ANSWER: $B$",
        "I think B is right",
    ],
)
def test_ways_to_choose_b(text: str) -> None:
    assert outcome("B", text) is Outcome.CORRECT
    assert outcome("A", text) is Outcome.WRONG


@pytest.mark.parametrize(
    "text", ["", "Answer: be", "B or C", "Answer: B or C", "Answer: A, B", "A dog", "Answer: B, or C"]
)
def test_no_letter_or_several_are_unparsed(text: str) -> None:
    assert outcome("B", text) is Outcome.UNPARSED


def test_several_letters_are_compared_as_a_set() -> None:
    assert outcome("ABC", "Answer: C, A and B") is Outcome.CORRECT
    assert outcome("ABC", "Answer: A, B") is Outcome.WRONG
    assert outcome("AB", "Answer: A or B") is Outcome.UNPARSED  # alternatives, not both


def test_cut_off_without_a_mark_is_truncated() -> None:
    assert outcome("B", "B looks", Finish.LENGTH) is Outcome.TRUNCATED


def test_letters_past_the_number_of_choices_do_not_exist() -> None:
    four = make_verifier("choice", num_choices=4)
    assert four.verify(bare_problem("D"), "Answer: E", Finish.STOP).outcome is Outcome.UNPARSED
    with pytest.raises(VerifierError):
        four.check(bare_problem("E"))
    with pytest.raises(RecipeError):
        make_verifier("choice", num_choices=1)
