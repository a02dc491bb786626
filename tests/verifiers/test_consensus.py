import math

import pytest

from lydian.data.problems import Problem
from lydian.data.trajectory import Completion, Finish, Sampling, Trajectory, Turn
from lydian.data.verdict import Outcome
from lydian.errors import RecipeError, VerifierError
from lydian.verifiers.consensus import (
    Consensus,
    Sample,
    SelfConfidence,
    TokenScorer,
    sample_of,
    score_groups,
    span_logprobs,
)
from lydian.verifiers.self_test import self_test
from lydian.verifiers.verifier import bare_problem, is_label_free, make_verifier, verify_all

NUMERIC = {"name": "numeric"}
PROBLEM = bare_problem("999")  # never looked at


def group(*texts: str, finish: Finish = Finish.STOP) -> list[Sample]:
    return [Sample(text=text, finish=finish) for text in texts]


def test_the_majority_is_over_equal_answers_and_not_over_strings() -> None:
    """1/2, 0.5 and 50% are one answer with 3 of 5 votes; 2 has one; "none" does not vote."""
    verdicts = Consensus(inner=NUMERIC).score_group(PROBLEM, group("1/2", "0.5", "Answer: 50%", "2", "none"))
    assert [v.outcome for v in verdicts] == [Outcome.CORRECT] * 3 + [Outcome.WRONG, Outcome.UNPARSED]
    assert [v.score for v in verdicts] == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert [v.parts["votes"] for v in verdicts] == [3, 3, 3, 1, 0]
    assert verdicts[0].parts["share"] == 0.6


@pytest.mark.parametrize("texts", [("1", "2"), ("1", "1", "2", "2", "3"), ("1", "2", "none")])
def test_a_tie_is_no_label(texts: tuple[str, ...]) -> None:
    verdicts = Consensus(inner=NUMERIC).score_group(PROBLEM, group(*texts))
    assert {v.outcome for v in verdicts} <= {Outcome.FAILED, Outcome.UNPARSED}
    assert {v.score for v, text in zip(verdicts, texts, strict=True) if text != "none"} == {None}


def test_a_majority_below_the_asked_share_is_no_label() -> None:
    """2 of 4 completions say 7."""
    for min_share, outcome in ((0.5, Outcome.CORRECT), (0.51, Outcome.FAILED)):
        scorer = Consensus(inner=NUMERIC, min_share=min_share)
        assert scorer.score_group(PROBLEM, group("7", "7", "8", "none"))[0].outcome is outcome


def test_a_group_without_answers_and_one_that_was_cut_off() -> None:
    scorer = Consensus(inner=NUMERIC)
    assert [v.outcome for v in scorer.score_group(PROBLEM, group("none", ""))] == [Outcome.UNPARSED] * 2
    cut = scorer.score_group(PROBLEM, group("so 4", "so 4", finish=Finish.LENGTH))
    assert [v.outcome for v in cut] == [Outcome.TRUNCATED] * 2
    assert scorer.score_group(PROBLEM, []) == []


def test_other_verifiers_read_the_answers_by_their_own_probe() -> None:
    scorer = Consensus(inner={"name": "choice"}, probe="A")
    outcomes = [v.outcome for v in scorer.score_group(PROBLEM, group("(B)", "The answer is b", "C"))]
    assert outcomes == [Outcome.CORRECT, Outcome.CORRECT, Outcome.WRONG]


SPELT = Sample(text="It is 1,000 now", finish=Finish.STOP, ends=(6, 8, 11, 15), logprobs=(-3.0, -0.1, -0.3, -2.0))


def test_confidence_is_the_geometric_mean_over_the_answers_tokens() -> None:
    """The tokens `1,` and `000` have −0.1 and −0.3: exp(−0.2) = 0.8187."""
    (verdict,) = SelfConfidence(inner=NUMERIC).score_group(PROBLEM, [SPELT])
    assert verdict.score == pytest.approx(0.8187, abs=1e-4)
    assert verdict.parts == {"label_free": 1.0, "mean_logprob": pytest.approx(-0.2)}
    assert verdict.outcome is Outcome.CORRECT
    low = SelfConfidence(inner=NUMERIC, min_score=0.9).score_group(PROBLEM, [SPELT])[0]
    assert low.outcome is Outcome.WRONG


def test_an_answer_whose_tokens_cannot_be_found_has_no_score() -> None:
    sample = Sample(text="x = −3", finish=Finish.STOP, ends=(6,), logprobs=(-0.5,))  # read as "-3"
    (verdict,) = SelfConfidence(inner=NUMERIC).score_group(PROBLEM, [sample])
    assert (verdict.score, verdict.outcome) == (None, Outcome.FAILED)
    (empty,) = SelfConfidence(inner=NUMERIC).score_group(PROBLEM, group("none"))
    assert (empty.score, empty.outcome) == (0.0, Outcome.UNPARSED)


def test_the_last_occurrence_is_the_answer() -> None:
    sample = Sample(text="4 no 4", finish=Finish.STOP, ends=(1, 4, 6), logprobs=(-9.0, -1.0, -0.5))
    assert span_logprobs(sample, "4") == (-0.5,)
    assert span_logprobs(sample, "5") == ()


def trajectory(sample: int, *tokens: int) -> Trajectory:
    completion = Completion(
        tokens=tokens,
        logprobs=(-0.5,) * len(tokens),
        sampling=Sampling(),
        versions=((len(tokens), 0),),
        finish=Finish.STOP,
    )
    return Trajectory(problem_id="p", sample=sample, turns=(Turn(context=(0,), completion=completion),))


def decode(tokens: tuple[int, ...]) -> str:
    return "".join(chr(token) for token in tokens)


def test_groups_of_trajectories_are_scored_together() -> None:
    """Three completions say 7, 7, 8."""
    problem = Problem(id="p", messages=bare_problem(None).messages)
    members = [trajectory(i, ord(" "), ord(char)) for i, char in enumerate("778")]
    assert sample_of(members[0], decode) == Sample(text=" 7", finish=Finish.STOP, ends=(1, 2), logprobs=(-0.5, -0.5))
    scorer = SelfConfidence(inner=NUMERIC)
    assert isinstance(scorer, TokenScorer) and not isinstance(Consensus(inner=NUMERIC), TokenScorer)
    (made,) = score_groups([problem], [members], decode, scorer)
    assert [member.verdict.score for member in made.members] == [pytest.approx(math.exp(-0.5))] * 3
    assert all(is_label_free(member.verdict.verifier) for member in made.members)
    assert all(member.verdict.parts["label_free"] == 1.0 for member in made.members)


def test_by_name_every_problem_s_completions_vote_among_themselves() -> None:
    """Problem a says 7, 7, 8 and problem b 8, 8, 7, interleaved: each has its own majority."""
    a, b = (Problem(id=name, messages=PROBLEM.messages) for name in "ab")
    items = [(a, "7"), (b, "8"), (a, "7"), (b, "8"), (a, "8"), (b, "7")]
    verdicts = verify_all(make_verifier("consensus", inner=NUMERIC), [(*item, Finish.STOP) for item in items])
    assert [v.score for v in verdicts] == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]


def test_a_vote_inside_a_sum_still_sees_its_group_and_marks_the_whole() -> None:
    """0.5 · (majority of 7, 7, 8) + 0.5 · (an even number of characters)."""
    parts = {"vote": {"name": "consensus", "inner": NUMERIC}, "even": {"name": "pattern", "pattern": r"\A(..)*\Z"}}
    verifier = make_verifier("weighted", parts=parts, weights={"vote": 0.5, "even": 0.5})
    verdicts = verify_all(verifier, [(PROBLEM, text, Finish.STOP) for text in ("7", " 7", " 8")])
    assert [v.score for v in verdicts] == [0.5, 1.0, 0.5]
    assert is_label_free(verifier.fingerprint) and verdicts[0].parts["vote.votes"] == 2.0


def test_one_vote_is_no_majority() -> None:
    scorer = Consensus(inner=NUMERIC)
    assert scorer.score_group(PROBLEM, group("7", "none"))[0].outcome is Outcome.FAILED
    assert scorer.verify(PROBLEM, "7", Finish.STOP).outcome is Outcome.FAILED


def test_what_reads_tokens_is_refused_where_only_texts_are_read() -> None:
    table = {"name": "self_confidence", "inner": NUMERIC}
    with pytest.raises(RecipeError, match="reads the tokens"):
        make_verifier("all_of", parts={"own": table})
    verdict = make_verifier(**table).verify(PROBLEM, "7", Finish.STOP)
    assert verdict.outcome is Outcome.FAILED and "no logprobs" in verdict.reason


def test_gold_answers_are_not_asked_about() -> None:
    """Of the self-test only the questions without gold remain, and a vote passes them."""
    verifier = make_verifier("consensus", inner=NUMERIC)
    findings = self_test(verifier, [bare_problem("3", question="1 + 2?")])
    assert [finding.name for finding in findings] == ["empty", "prompt copied"]
    assert all(finding.is_passed for finding in findings)


def test_bad_settings_and_samples_are_refused() -> None:
    for make in (
        lambda: Consensus(inner={}),
        lambda: Consensus(inner=NUMERIC, min_share=2.0),
        lambda: SelfConfidence(inner=NUMERIC, min_score=-1.0),
    ):
        with pytest.raises(RecipeError):
            make()
    with pytest.raises(VerifierError):
        Sample(text="a", finish=Finish.STOP, ends=(1,), logprobs=())
    assert Consensus(inner=NUMERIC).fingerprint != Consensus(inner=NUMERIC, min_share=0.5).fingerprint
