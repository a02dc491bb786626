import time

import pytest

from lydian.verifiers.reading import NoAnswer, answer_part, marked_answer, single_number


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed 2.", "2"),
        (r"\boxed {2}", "2"),
        (r"\fbox{2}", "2"),
        (r"\boxed{\{1\}}", r"\{1\}"),  # escaped braces do not close it
        (r"\boxed{35 cm} ++++++ \boxed{4}", "4"),
        (r"\boxed{3}, \boxed{4}", "3 or 4"),
        (r"\boxed{3} and \boxed{4}", "3 or 4"),
        (r"\boxed{4} \boxed{4}", "4"),
        (r"\boxed{}", ""),
        (r"The answer is \boxed{4}, since \boxed{4}.", "4"),
        (r"\boxed{5}. No: the answer is 6.", "6"),
        ("#### 6. Now ours:\n#### 42", "42"),
        ("#### 41\n#### 42", "41 or 42"),
        ("**Answer:** 42", "42"),
        ("The final answer is:\n\n42", "42"),
        ("<answer>7</answer>", "7"),
        (r"<answer>so \boxed{7}</answer>", "7"),
    ],
)
def test_the_marked_answer(text: str, answer: str) -> None:
    found = marked_answer(answer_part(text))
    assert found is not None
    assert found.text == answer


@pytest.mark.parametrize("text", ["It is 42.", r"\boxed{4", "answering"])
def test_no_mark_is_none(text: str) -> None:
    assert marked_answer(answer_part(text)) is None


@pytest.mark.parametrize("text", ["<answer>4", "<answer>4</answer><answer>5</answer>"])
def test_unclosed_and_contradicting_blocks_are_no_answer(text: str) -> None:
    with pytest.raises(NoAnswer):
        marked_answer(answer_part(text))


def test_only_what_follows_the_reasoning_counts() -> None:
    assert answer_part("<think>3</think>4") == "4"
    assert answer_part("3</think>4") == "4"  # the prompt opened it
    with pytest.raises(NoAnswer):
        answer_part("<think> so 3")


def test_an_invented_question_ends_the_answer_but_a_restated_one_does_not_begin_it() -> None:
    assert answer_part("4\nQuestion: 1 + 1?\n2") == "4\n"
    assert answer_part("Question: 2 + 2?\n4") == "Question: 2 + 2?\n4"


def test_with_a_marker_nothing_else_marks() -> None:
    found = marked_answer(r"\boxed{3} A: 4", marker="A:")
    assert found is not None
    assert found.text == "4"
    assert marked_answer(r"PA: 4", marker="A:") is None


@pytest.mark.parametrize("text", ["3 or 4", "3, 4", "3 and 4", "3 dollars or maybe 4", "$3$ $4$"])
def test_two_candidates_are_none(text: str) -> None:
    for index in (0, -1):
        with pytest.raises(NoAnswer):
            single_number(text, index=index)


def test_the_same_value_twice_is_one_candidate() -> None:
    assert single_number("3/4 or 0.75", index=0).text == "3/4"


@pytest.mark.parametrize(
    "piece",
    [
        "<answer>",
        "</answer>",
        r"\boxed{",
        "{",
        r"\boxed{4} and ",
        "answer is ",
        "#### 4 or\n",
        "1,",
        "1 ",
        "1/",
        "$",
        "9",
    ],
)
def test_reading_takes_linear_time(piece: str) -> None:
    """100,000 characters of a repeated piece are read within 20 s of processor time; a quadratic rule takes minutes."""
    started = time.process_time()
    text = piece * (100_000 // len(piece))
    try:
        part = answer_part(text)
        marked_answer(part)
        single_number(part, index=-1)
    except NoAnswer:
        pass
    assert time.process_time() - started < 20
