"""What sampled tokens must carry, and that trajectories only grow or fork."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lydian.data.trajectory import Completion, Finish, Sampling, Trajectory, Turn
from lydian.errors import InputError

SAMPLING = Sampling()
DONE = Completion(tokens=(5, 2), logprobs=(-0.7, -0.1), sampling=SAMPLING, versions=((2, 0),), finish=Finish.STOP)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 1.0},
        {"min_p": -0.1},
        {"max_tokens": 0},
        {"stop": ("",)},
    ],
)
def test_sampling_refuses(settings):
    with pytest.raises(InputError, match=f"Sampling.{next(iter(settings))}"):
        Sampling(**settings)


@pytest.mark.parametrize(
    ("sampling", "truncates"),
    [
        (Sampling(temperature=1.5), False),
        (Sampling(temperature=0), True),
        (Sampling(top_p=0.9), True),
        (Sampling(top_k=5), True),
        (Sampling(min_p=0.1), True),
    ],
)
def test_when_some_tokens_cannot_be_drawn(sampling, truncates):
    assert sampling.truncates_support is truncates
    assert sampling.is_greedy is (sampling.temperature == 0)


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": (-0.7,)},
        {"logprobs": (-0.7, float("nan"))},
        {"logprobs": (-0.7, float("-inf"))},
        {"logprobs": (-0.7, 0.5)},
        {"versions": ((1, 0),)},
        {"versions": ((1, 0), (2, 1))},
        {"tokens": (), "logprobs": (), "versions": ()},
    ],
)
def test_a_completion_refuses(change):
    with pytest.raises(InputError, match=r"Completion\."):
        replace(DONE, **change)


def test_an_aborted_completion_may_be_empty_and_versions_may_change_on_the_way():
    assert replace(DONE, tokens=(), logprobs=(), versions=(), finish=Finish.ABORT).tokens == ()
    assert replace(DONE, versions=((1, 0), (1, 1))).versions == ((1, 0), (1, 1))


def test_a_trajectory_grows_and_forks_without_changing():
    first = Trajectory(problem_id="p", sample=0, turns=(Turn(context=(1, 3), completion=DONE),))
    longer = first.extend(Turn(context=(9,), completion=replace(DONE, tokens=(7, 8), finish=Finish.LENGTH)))
    assert first.tokens == (1, 3, 5, 2)
    assert longer.tokens == (1, 3, 5, 2, 9, 7, 8)
    assert (longer.finish, longer.num_sampled_tokens) == (Finish.LENGTH, 4)
    assert longer.fork(1) == first
    with pytest.raises(InputError, match="at least one turn"):
        longer.fork(0)


def test_a_trajectory_begins_with_a_prompt():
    with pytest.raises(InputError, match="expected a prompt"):
        Trajectory(problem_id="p", sample=0, turns=(Turn(context=(), completion=DONE),))
