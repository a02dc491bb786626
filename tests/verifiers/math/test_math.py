import pytest

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError, VerifierError
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import bare_problem


def verdict(gold: str, text: str, finish: Finish = Finish.STOP, **settings: object) -> Verdict:
    return make_verifier("math", **settings).verify(bare_problem(gold), text, finish)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("4", r"x = \frac{8}{2} = \boxed{4}"),
        ("0.335", r"33.5\%"),
        (r"\sqrt{2}", "$1.41421356237$"),  # 12 digits
        (r"\frac{3\sqrt{5}}{7}", "(3*sqrt(5))/7"),
        ("x<3", r"\boxed{(-\infty,3)}"),
        (r"1\pm\sqrt{19}", r"\boxed{1+\sqrt{19}, 1-\sqrt{19}}"),
        (r"\text{Evelyn}", "The answer is Evelyn."),
        ("11", r"\boxed{x=11}"),
        ("74^\\circ", "74°"),
        (r"4210_{7}", r"\boxed{4210_7}"),
        ("42", r"\boxed{\text{The answer is } 42}"),
    ],
)
def test_equal_answers(gold: str, text: str) -> None:
    assert verdict(gold, text).outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        (r"\frac{100}{3}", r"\boxed{33.3}"),
        (r"\sqrt{2}", "$1.414$"),
        ("100000000000", "99999999999"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        ("(3,1)", "(1,3)"),
        ("12", "1,2"),
        ("1112112_3", r"1112112_{10}"),
        ("1:2:3", "1:4:9"),
    ],
)
def test_unequal_answers(gold: str, text: str) -> None:
    assert verdict(gold, text).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{3} \boxed{4}",
        r"\boxed{3} and \boxed{4}",
        r"\boxed{3, 4}",
        r"\boxed{3;4}",
        r"\boxed{4 \text{ or } 5}",
        r"\boxed{x=3 \text{ or } x=4}",
        r"\boxed{\{1,2,3,4\}}",
        r"\boxed{\pm 4}",
        r"\boxed{[0,8]}",
        r"\boxed{x>3}",
        "The answer is $4$ or $5$.",
        "The answer is 3 or 4.",
        "It is 3 or 4.",
        "$3$ $4$",
    ],
)
def test_listing_candidates_is_not_paid(text: str) -> None:
    assert verdict("4", text).score == 0.0


def test_the_box_after_the_reasoning_counts() -> None:
    assert verdict("4", r"<think>\boxed{3}</think> \boxed{4}").outcome is Outcome.CORRECT
    assert verdict("3", r"<think>\boxed{3}</think> I cannot say.").outcome is Outcome.UNPARSED
    assert verdict("3", r"<think>\boxed{3} and then", Finish.LENGTH).outcome is Outcome.TRUNCATED


def test_an_empty_box_and_an_endless_answer_are_unparsed() -> None:
    assert verdict("4", r"2 + 2 = 4, so \boxed{}").outcome is Outcome.UNPARSED
    assert verdict("4", "4" * 3000, answer_only=True).outcome is Outcome.UNPARSED


def test_cut_off_work_is_truncated_unless_its_answer_is_boxed() -> None:
    assert verdict("4", "Now $x = 4$, and", Finish.LENGTH).outcome is Outcome.TRUNCATED
    assert verdict("4", r"So \boxed{4}. To check,", Finish.LENGTH).outcome is Outcome.CORRECT


def test_a_comparison_past_its_limit_is_failed_and_has_no_score() -> None:
    bomb = verdict("1", r"\boxed{\Gamma(10^9)}", cpu_seconds=0.3)
    assert (bomb.outcome, bomb.score) == (Outcome.FAILED, None)
    assert "0.3 s" in bomb.reason


def test_a_payload_is_not_executed(tmp_path) -> None:
    target = tmp_path / "touched"
    payload = rf"\begin{{pmatrix}}__import__('pathlib').Path('{target}').touch()\end{{pmatrix}}"
    assert verdict("1", payload, answer_only=True).score == 0.0
    assert not target.exists()


def test_answer_only_takes_the_whole_prediction() -> None:
    assert verdict("2x+4y-3=0", r"y=-\frac{1}{2}x+\frac{3}{4}", answer_only=True).outcome is Outcome.CORRECT


def test_a_problem_without_a_gold_answer_is_an_error_when_checked() -> None:
    with pytest.raises(VerifierError):
        make_verifier("math").check(bare_problem(None))


@pytest.mark.parametrize("gold", [r"\frac{1}{", r"\boxed{}", "...", "3 +", "}{", r"\begin{pmatrix}1", "7" * 3000])
def test_a_gold_answer_that_nobody_can_read_is_an_error_when_checked(gold: str) -> None:
    with pytest.raises(VerifierError):
        make_verifier("math").check(bare_problem(gold))


def test_the_policies_are_settings_and_enter_the_fingerprint() -> None:
    assert make_verifier("math").fingerprint != make_verifier("math", units="ignored").fingerprint
    assert verdict("50", "50%", answer_only=True).outcome is Outcome.WRONG
    assert verdict("50", "50%", answer_only=True, percent="either").outcome is Outcome.CORRECT
    with pytest.raises(RecipeError):
        make_verifier("math", base="any")
