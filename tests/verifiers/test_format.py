import pytest

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.errors import RecipeError
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import bare_problem


def is_kept(name: str, text: str, **settings: object) -> bool:
    return make_verifier(name, **settings).verify(bare_problem(None), text, Finish.STOP).is_correct


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<think>a</think><answer>4</answer>", True),
        ("<think>a</think> so <answer>4</answer> done", True),
        ("<answer>4</answer><think>a</think>", False),
        ("<think>a<answer>4</answer></think>", False),
        ("<think>a</think>", False),
        ("<think></think><answer>4</answer>", False),
        ("</answer>4<answer><think>a</think>", False),
    ],
)
def test_tags_once_closed_filled_and_in_order(text: str, kept: bool) -> None:
    assert is_kept("format", text, tags=["think", "answer"]) is kept


def test_exclusive_forbids_text_outside() -> None:
    assert is_kept("format", " <answer>4</answer>\n", is_exclusive=True)
    assert not is_kept("format", "<answer>4</answer> done", is_exclusive=True)
    assert not is_kept("format", "so <answer>4</answer>", is_exclusive=True)


@pytest.mark.parametrize(
    ("text", "kept", "published"),
    [
        ("a </think> <answer>4</answer>", True, True),
        ("<think>a</think> <answer>4</answer>", True, True),
        ("a </think>\n\n<answer>4</answer>", True, False),  # white space between tags does not matter
        ("a </think><answer>4</answer>", True, False),
        ("a </think> <answer>4</answer> and more", False, True),
        ("</answer> a </think> <answer>4", False, True),  # the published rule does not look at the order
        ("a </think> <answer></answer>", False, True),
        ("a <answer>4</answer> </think> <answer>4</answer>", False, True),
        ("<answer>4</answer>", False, False),
        ("a </think> </think> <answer>4</answer>", False, True),
    ],
)
def test_r1_format_and_the_published_rule(text: str, kept: bool, published: bool) -> None:
    assert is_kept("r1_format", text) is kept
    assert is_kept("r1_format", text, is_published=True) is published


def test_a_fault_in_a_cut_off_completion_is_truncated() -> None:
    for name in ("format", "r1_format"):
        verdict = make_verifier(name).verify(bare_problem(None), "so", Finish.LENGTH)
        assert verdict.outcome is Outcome.TRUNCATED


def test_tags_are_names() -> None:
    for tags in ("answer", [], ["<answer>"]):
        with pytest.raises(RecipeError):
            make_verifier("format", tags=tags)
