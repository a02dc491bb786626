"""A verdict has a score or failed; a group is one problem under one verifier."""

from __future__ import annotations

import pytest

from lydian.data.problems import Message, Problem
from lydian.data.trajectory import Completion, Finish, Sampling, Trajectory, Turn
from lydian.data.verdict import Group, Outcome, Scored, Verdict
from lydian.errors import VerifierError

PROBLEM = Problem(id="p", messages=(Message(role="user", content="2 + 3 = ?"),), answer="5")


def verdict(outcome=Outcome.CORRECT, score=1.0, verifier="numeric:1"):
    return Verdict(score=score, outcome=outcome, extracted=None, verifier=verifier)


def scored(judged, problem_id="p"):
    completion = Completion(tokens=(5,), logprobs=(-0.1,), sampling=Sampling(), versions=((1, 0),), finish=Finish.STOP)
    turn = Turn(context=(1,), completion=completion)
    return Scored(trajectory=Trajectory(problem_id=problem_id, sample=0, turns=(turn,)), verdict=judged)


@pytest.mark.parametrize("outcome", Outcome)
def test_exactly_the_failed_have_no_score(outcome):
    score = None if outcome is Outcome.FAILED else 0.0
    assert verdict(outcome, score).is_correct is (outcome is Outcome.CORRECT)
    with pytest.raises(VerifierError, match="a score for every outcome but FAILED"):
        verdict(outcome, 0.0 if score is None else None)


def test_a_group_counts_the_correct_by_outcome_and_not_by_score():
    members = (scored(verdict()), scored(verdict(Outcome.WRONG, 0.9)), scored(verdict(Outcome.FAILED, None)))
    assert Group(problem=PROBLEM, members=members).num_correct == 1


@pytest.mark.parametrize(
    "members",
    [(), (scored(verdict()), scored(verdict(), "other")), (scored(verdict()), scored(verdict(verifier="math:2")))],
    ids=["nobody", "another problem", "another verifier"],
)
def test_a_group_refuses(members):
    with pytest.raises(VerifierError, match="all of this problem, judged by one verifier"):
        Group(problem=PROBLEM, members=members)
