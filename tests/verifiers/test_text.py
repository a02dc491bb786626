import pytest

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.errors import RecipeError, VerifierError
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import bare_problem


def outcome(name: str, gold: str, text: str, finish: Finish = Finish.STOP, **settings: object) -> Outcome:
    verifier = make_verifier(name, **settings)
    verifier.check(bare_problem(gold))
    return verifier.verify(bare_problem(gold), text, finish).outcome


@pytest.mark.parametrize(
    "text",
    ["Paris", "paris.", ' "Paris" ', "**PARIS**", "The answer is Paris.", "<answer>Paris</answer>", "Ｐａｒｉｓ"],
)
def test_exact_forgives_what_its_normalisation_says(text: str) -> None:
    assert outcome("exact", "Paris", text) is Outcome.CORRECT


@pytest.mark.parametrize("text", ["Pari", "Paris France", "Paris or Rome", "<answer>Rome</answer> Paris"])
def test_exact_forgives_nothing_else(text: str) -> None:
    assert outcome("exact", "Paris", text) is Outcome.WRONG


def test_settings_of_the_normalisation() -> None:
    assert outcome("exact", "C++", "C") is Outcome.WRONG
    assert outcome("exact", "C++", "C", ignore_punctuation=True) is Outcome.CORRECT
    assert outcome("exact", "The Beatles", "beatles") is Outcome.WRONG
    assert outcome("exact", "The Beatles", "beatles", ignore_articles=True) is Outcome.CORRECT
    assert outcome("exact", "a;b", "b", alternatives=";") is Outcome.CORRECT
    assert outcome("exact", "Paris", "The answer is Paris.", whole_reply=True) is Outcome.WRONG


def test_cut_off_and_unfinished() -> None:
    assert outcome("exact", "Paris", "Paris", Finish.LENGTH) is Outcome.TRUNCATED
    assert outcome("exact", "Paris", "<answer>Paris</answer> and", Finish.LENGTH) is Outcome.CORRECT
    assert outcome("exact", "Paris", "<think>Paris") is Outcome.UNPARSED
    assert outcome("contains", "Paris", "<think>Paris") is Outcome.UNPARSED


def test_contains_looks_for_whole_words() -> None:
    assert outcome("contains", "art", "Modern Art.") is Outcome.CORRECT
    assert outcome("contains", "art", "smart") is Outcome.WRONG
    assert outcome("contains", "art", "smart", whole_words=False) is Outcome.CORRECT
    assert outcome("contains", "NYC|New York", "in new  york!", alternatives="|") is Outcome.CORRECT
    assert outcome("contains", "Paris", "Rome, Oslo, Paris", max_words=2) is Outcome.WRONG


def test_a_regular_expression_that_never_ends_is_stopped() -> None:
    assert outcome("regex", "(a|aa)+$", "a" * 60 + "b", cpu_seconds=0.2) is Outcome.FAILED


@pytest.mark.parametrize(
    ("name", "gold"), [("exact", " "), ("exact", "..."), ("contains", "!"), ("regex", "("), ("regex", "")]
)
def test_gold_that_says_nothing_is_refused(name: str, gold: str) -> None:
    with pytest.raises(VerifierError):
        make_verifier(name).check(bare_problem(gold))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("exact", {"alternatives": ""}), ("contains", {"max_words": 0}), ("regex", {"where": "start"})],
)
def test_bad_settings_are_refused(name: str, settings: dict) -> None:
    with pytest.raises(RecipeError):
        make_verifier(name, **settings)
