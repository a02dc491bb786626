import json
import os
from pathlib import Path

import pytest

from lydian.data.problems import Message, Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError, VerifierError
from lydian.verifiers import make_verifier
from lydian.verifiers.grade import grade_lines
from lydian.verifiers.verifier import bare_problem

CASES = Path(os.environ.get("LYDIAN_DATA", Path(__file__).parents[3] / "../shared/data")).parent / "cases/graders.jsonl"


def judge(gold: object, text: str, finish: Finish = Finish.STOP, **settings: object) -> Verdict:
    verifier = make_verifier("constraints", **settings)
    problem = bare_problem(json.dumps(gold))
    verifier.check(problem)
    return verifier.verify(problem, text, finish)


TWO = {
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{}, {"num_words": 3, "relation": "at least"}],
}


@pytest.mark.skipif(not CASES.exists(), reason=f"no {CASES}")
def test_cases_in_which_public_graders_erred() -> None:
    rows = [line for line in CASES.read_text().splitlines() if json.loads(line)["kind"] == "ifeval"]
    wanted = [{"correct": "correct", "incorrect": "wrong"}[json.loads(row)["expected"]] for row in rows]
    assert [verdict["outcome"] for verdict in grade_lines(rows, make_verifier("constraints"))] == wanted


def test_each_constraint_has_its_part_and_the_score_is_all_or_the_share() -> None:
    """One of two is kept: 0 by default, 1/2 as a share."""
    verdict = judge(TWO, "One, two three")
    assert verdict.parts == {"punctuation:no_comma": 0.0, "length_constraints:number_words": 1.0}
    assert (verdict.score, verdict.outcome) == (0.0, Outcome.WRONG)
    assert judge(TWO, "One, two three", score="share").score == 0.5
    assert judge(TWO, "One two three", score="share").score == 1.0


def test_two_constraints_of_one_name_keep_two_parts() -> None:
    gold = [{"kind": "keywords", "keywords": ["a"]}, {"kind": "keywords", "keywords": ["b"]}]
    assert judge(gold, "a").parts == {"keywords": 1.0, "keywords#2": 0.0}


@pytest.mark.parametrize(
    "text", ["", " \n", "<think>no commas here</think>", "<think>Fine.</think>  "], ids=["empty", "blank", "a", "b"]
)
def test_an_empty_reply_follows_nothing(text: str) -> None:
    for settings in ({}, {"mode": "loose"}):
        verdict = judge({"kind": "no_comma"}, text, **settings)
        assert (verdict.score, verdict.outcome) == (0.0, Outcome.WRONG)


def test_only_what_follows_the_reasoning_counts() -> None:
    assert judge({"kind": "no_comma"}, "<think>Well, hm,</think>Yes.").is_correct
    assert judge({"kind": "no_comma"}, "<think>Yes.").outcome is Outcome.UNPARSED


def test_a_reply_that_was_cut_off_is_never_right() -> None:
    verdict = judge({"kind": "no_comma"}, "Yes and then", Finish.LENGTH, score="share")
    assert (verdict.score, verdict.outcome, verdict.parts) == (0.0, Outcome.TRUNCATED, {"no_comma": 1.0})


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ({"kind": "start_phrase", "start_phrase": "Dear"}, "Sure:\nDear Ann"),
        ({"kind": "end_phrase", "end_phrase": "The end"}, "The end\nAnything else?"),
        ({"kind": "json_format"}, 'Here:\n{"a": 1}\nDone.'),
        ({"kind": "end_phrase", "end_phrase": "The end"}, "So **The* end**"),
    ],
)
def test_loose_forgives_a_first_line_a_last_line_and_asterisks(gold: dict, text: str) -> None:
    assert judge(gold, text).outcome is Outcome.WRONG
    assert judge(gold, text, mode="loose").is_correct


def test_constraints_from_metadata_and_settings_add_up() -> None:
    """IFEval's columns, as lists or as JSON text, beside constraints of the run."""
    asked = (Message(role="user", content="Say it."),)
    for columns in (TWO, {key: json.dumps(value) for key, value in TWO.items()}):
        problem = Problem(id="p", messages=asked, metadata=columns)
        verifier = make_verifier("constraints", constraints=[{"kind": "title"}])
        verifier.check(problem)
        verdict = verifier.verify(problem, "One two three", Finish.STOP)
        assert verdict.parts == {"punctuation:no_comma": 1.0, "length_constraints:number_words": 1.0, "title": 0.0}


@pytest.mark.parametrize(
    "gold",
    [
        "not JSON",
        "[]",
        "3",
        '{"kind": "no_commas"}',
        '{"instruction_id": "keywords:frequency", "kwargs": {"keyword": "a", "number": 2}}',
        '{"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}',
        '[{"no": "kind"}]',
        "[3]",
    ],
)
def test_gold_that_cannot_be_read_is_an_error_when_problems_are_loaded(gold: str) -> None:
    with pytest.raises(VerifierError):
        make_verifier("constraints").check(bare_problem(gold))


@pytest.mark.parametrize("settings", [{"mode": "lose"}, {"score": "some"}, {"constraints": [{"kind": "no"}]}])
def test_bad_settings_are_refused(settings: dict) -> None:
    with pytest.raises(RecipeError):
        make_verifier("constraints", **settings)


def test_a_reply_of_endless_length_follows_nothing() -> None:
    assert judge({"kind": "no_comma"}, "a " * 200_000).outcome is Outcome.WRONG
