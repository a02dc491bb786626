from dataclasses import replace

import pytest

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError, VerifierError
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import bare_problem

PARTS = {"format": {"name": "r1_format"}, "content": {"name": "numeric"}}
BOTH = "a </think> <answer>4</answer>"
FORMAT_ONLY = "a </think> <answer>5</answer>"
CONTENT_ONLY = "The answer is 4."
BOMB = r"a </think> <answer>9^{9^{9^{9}}}</answer>"
SLOW = {"format": {"name": "r1_format"}, "content": {"name": "math", "cpu_seconds": 0.3}}


def judge(name: str, text: str, finish: Finish = Finish.STOP, **settings: object) -> Verdict:
    return make_verifier(name, **settings).verify(bare_problem("4"), text, finish)


@pytest.mark.parametrize(
    ("text", "score", "outcome", "parts"),
    [
        (BOTH, 1.0, Outcome.CORRECT, {"format": 1.0, "content": 1.0}),
        (FORMAT_ONLY, 0.0, Outcome.WRONG, {"format": 1.0, "content": 0.0}),
        (CONTENT_ONLY, 0.0, Outcome.WRONG, {"format": 0.0, "content": 1.0}),
        ("a </think> <answer>x</answer>", 0.0, Outcome.UNPARSED, {"format": 1.0, "content": 0.0}),
    ],
)
def test_all_of_pays_only_when_every_part_is_right(
    text: str, score: float, outcome: Outcome, parts: dict[str, float]
) -> None:
    verdict = judge("all_of", text, parts=PARTS)
    assert (verdict.score, verdict.outcome, verdict.parts) == (score, outcome, parts)


def test_weighted_adds_up_and_one_part_can_decide_the_outcome() -> None:
    """0.2 · format + 0.8 · content: 1.0, 0.2 and 0.8."""
    settings = {"parts": PARTS, "weights": {"format": 0.2, "content": 0.8}}
    for text, score in ((BOTH, 1.0), (FORMAT_ONLY, 0.2), (CONTENT_ONLY, 0.8)):
        assert judge("weighted", text, **settings).score == pytest.approx(score)
    assert judge("weighted", CONTENT_ONLY, **settings).outcome is Outcome.WRONG
    assert judge("weighted", CONTENT_ONLY, **settings, decided_by="content").outcome is Outcome.CORRECT


def test_a_failed_part_fails_the_whole_and_the_other_parts_are_kept() -> None:
    weights = {"format": 0.2, "content": 0.8}
    for verdict in (judge("all_of", BOMB, parts=SLOW), judge("weighted", BOMB, parts=SLOW, weights=weights)):
        assert (verdict.score, verdict.outcome, verdict.parts) == (None, Outcome.FAILED, {"format": 1.0})


def test_a_failed_part_that_only_records_leaves_the_score() -> None:
    weights = {"format": 1.0, "content": 0.0}
    verdict = judge("weighted", BOMB, parts=SLOW, weights=weights, decided_by="format")
    assert (verdict.score, verdict.outcome) == (1.0, Outcome.CORRECT)


def test_parts_of_parts_have_dotted_names() -> None:
    inner = {"name": "all_of", "parts": PARTS}
    verdict = judge("all_of", BOTH, parts={"inner": inner, "layout": {"name": "format"}})
    assert verdict.parts == {"inner": 1.0, "inner.format": 1.0, "inner.content": 1.0, "layout": 1.0}
    assert verdict.extracted == "4"


def test_check_reaches_every_part_and_the_fingerprint_every_setting() -> None:
    with pytest.raises(VerifierError):
        make_verifier("all_of", parts=PARTS).check(bare_problem("many"))
    other = PARTS | {"content": {"name": "numeric", "marker": "####"}}
    assert make_verifier("all_of", parts=PARTS).fingerprint != make_verifier("all_of", parts=other).fingerprint


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("all_of", {"parts": {}}),
        ("all_of", {"parts": {"a.b": {"name": "format"}}}),
        ("all_of", {"parts": {"a": {}}}),
        ("all_of", {"parts": {"a": {"name": "numerc"}}}),
        ("weighted", {"parts": PARTS, "weights": {"format": 1.0}}),
        ("weighted", {"parts": PARTS, "weights": {"format": 1.0, "content": float("nan")}}),
        ("weighted", {"parts": PARTS, "weights": {"format": 1.0, "content": 1.0}, "decided_by": "x"}),
    ],
)
def test_bad_tables_are_refused(name: str, settings: dict) -> None:
    with pytest.raises(RecipeError):
        make_verifier(name, **settings)


def test_threshold_turns_a_soft_score_into_right_or_wrong_and_keeps_it() -> None:
    """0.2 · format + 0.8 · content: a right answer without the format has 0.8."""
    soft = {"soft": {"name": "weighted", "parts": PARTS, "weights": {"format": 0.2, "content": 0.8}}}
    low, high = (judge("threshold", CONTENT_ONLY, parts=soft, at_least=bound) for bound in (0.8, 0.9))
    assert (low.score, low.outcome, high.score, high.outcome) == (1.0, Outcome.CORRECT, 0.0, Outcome.WRONG)
    assert high.parts == {"soft": pytest.approx(0.8), "soft.format": 0.0, "soft.content": 1.0}


def test_threshold_of_a_failed_part_has_no_score() -> None:
    verdict = judge("threshold", BOMB, parts={"all": {"name": "all_of", "parts": SLOW}}, at_least=0.0)
    assert (verdict.score, verdict.outcome) == (None, Outcome.FAILED)


def test_by_field_judges_each_problem_by_its_own_verifier() -> None:
    choices = {"number": {"name": "numeric"}, "letter": {"name": "choice"}}
    verifier = make_verifier("by_field", field="kind", choices=choices)
    number = replace(bare_problem("4"), metadata={"kind": "number"})
    letter = replace(bare_problem("B"), metadata={"kind": "letter"})
    verdicts = [verifier.verify(problem, "The answer is B.", Finish.STOP) for problem in (number, letter)]
    assert [(v.outcome, v.parts) for v in verdicts] == [
        (Outcome.UNPARSED, {"number": 0.0}),
        (Outcome.CORRECT, {"letter": 1.0}),
    ]
    assert {v.verifier for v in verdicts} == {verifier.fingerprint}
    with pytest.raises(VerifierError):
        verifier.check(replace(bare_problem("B"), metadata={"kind": "other"}))
    with pytest.raises(VerifierError):
        verifier.check(bare_problem("B"))
    with pytest.raises(RecipeError):
        make_verifier("by_field", field="kind", choices=choices, default="word")
