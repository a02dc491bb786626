"""Credit with a critic: streams worked out by hand on replies of three tokens, and which samples are trained."""

from __future__ import annotations

import functools
from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest

from lydian.data.sequence import Sequence
from lydian.data.trajectory import Finish, Sampling
from lydian.data.verdict import Group, Scored
from lydian.errors import RecipeError
from lydian.objectives.returns import discounted_returns, gae
from lydian.training.credit_critic import ValueBaseline
from lydian.training.step_facts import with_stream
from lydian.training.terms import KLInReward
from tests.training.toys import group, problem, trajectory, verdict

VALUES = (0.5, 0.6, 0.7)
KL = KLInReward(place="reward", coef=0.05)
Streams = dict[str, tuple[float, ...]]


def baseline(advantage=gae, **settings) -> ValueBaseline:
    return ValueBaseline(advantage=advantage, **{"is_whitened": False} | settings)


def truncated(score: float | None, reply: str = "bcd") -> Group:
    """One completion of the question `a`, cut off."""
    member = Scored(trajectory=trajectory("a", reply, finish=Finish.LENGTH), verdict=verdict(score))
    return Group(problem=problem("a"), members=(member,))


def measured(credit: ValueBaseline, *groups: Group, values: Seq[float] = VALUES, after: float = 0.8) -> list[Sequence]:
    """The items of the groups, with the same values for each, as ActorCritic measures them, and logprobs for a KL."""
    items = credit.items(groups, {})
    logprobs = {"old_value": values, "proximal_logprobs": (-1.0, -1.0, -1.0), "reference_logprobs": (-1.2, -1.4, -0.9)}
    for name, numbers in logprobs.items():
        items = with_stream(items, name, {item.id: numbers for item in items})
    return [replace(item, facts={**item.facts, "bootstrap_value": after}) for item in items]


def assigned(credit: ValueBaseline, *groups: Group, **measurements) -> Sequence:
    """The only sequence."""
    (sequence,) = credit.assign(measured(credit, *groups, **measurements))
    return sequence


def at_trained(sequence: Sequence, name: str) -> list[float]:
    return [value for value, used in zip(sequence.streams[name], sequence.trained, strict=True) if used]


REPLY = group("a", ("bc", 1.0))
"""Three tokens, b c and the stop token, with the score 1."""


def test_published_numbers():
    """R = 0 0 1, V = .5 .6 .7, γ = 1, λ = .95: Â = .46575 .385 .3 and returns .96575 .985 1."""
    sequence = assigned(baseline(), REPLY)
    assert at_trained(sequence, "advantage") == pytest.approx([0.46575, 0.385, 0.3])
    assert at_trained(sequence, "returns") == pytest.approx([0.96575, 0.985, 1.0])
    assert sequence.facts["total_reward"] == 1.0


def test_the_kl_is_taken_off_token_by_token():
    """k1 = .2 .4 −.1, β = .05: rewards −.01 −.02 1.005, whose sum is 1 − .05 · .5. Backwards: δ₃ = 1.005 − .7 = .305;
    δ₂ = −.02 + .7 − .6 = .08, A₂ = .08 + .95 · .305 = .36975; δ₁ = −.01 + .6 − .5 = .09, A₁ = .09 + .95 · .36975."""
    sequence = assigned(baseline(kl=KL), REPLY)
    assert at_trained(sequence, "advantage") == pytest.approx([0.4412625, 0.36975, 0.305])
    assert at_trained(sequence, "returns") == pytest.approx([0.9412625, 0.96975, 1.005])
    assert sequence.facts["total_reward"] == pytest.approx(0.975)


def test_a_truncated_completion_goes_on_with_the_value_after_it():
    """Score 0, V after the end .8: δ = .1 .1 .1, so A₃ = .1, A₂ = .1 + .95 · .1, A₁ = .1 + .95 · .195."""
    sequence = assigned(baseline(), truncated(0.0))
    assert at_trained(sequence, "advantage") == pytest.approx([0.28525, 0.195, 0.1])
    assert at_trained(sequence, "returns") == pytest.approx([0.78525, 0.795, 0.8])


def test_without_bootstrap_it_ends_there():
    """δ₃ = 0 − .7, A₂ = .1 − .665, A₁ = .1 − .95 · .565."""
    sequence = assigned(baseline(bootstraps=False), truncated(0.0))
    assert at_trained(sequence, "advantage") == pytest.approx([-0.43675, -0.565, -0.7])


def test_discount_and_lambda_are_the_advantages_own():
    """γ = λ = ½: δ₃ = 1 − .7; δ₂ = .35 − .6, A₂ = −.25 + ¼ · .3; δ₁ = .3 − .5, A₁ = −.2 − ¼ · .175."""
    credit = baseline(functools.partial(gae, discount=0.5, gae_lambda=0.5))
    assert at_trained(assigned(credit, REPLY), "advantage") == pytest.approx([-0.24375, -0.175, 0.3])


def test_another_function_of_the_tokens_may_be_the_advantage():
    """Returns themselves, γ = ½: ¼ ½ 1. It asks for fewer things than gae, by name."""
    credit = baseline(functools.partial(discounted_returns, discount=0.5))
    assert at_trained(assigned(credit, REPLY), "advantage") == pytest.approx([0.25, 0.5, 1.0])


def test_advantages_are_whitened_over_the_round_and_returns_are_not():
    """Two completions of one token with the rewards 1 and 3, V = 0: advantages 1 and 3 have the mean 2 and the sample
    deviation √2."""
    credit = baseline(is_whitened=True)
    items = [
        replace(
            item,
            streams={**item.streams, "old_value": (0.0, 0.0)},
            facts={**item.facts, "bootstrap_value": 0.0},
        )
        for item in credit.items([group("a", ("", 1.0)), group("b", ("", 3.0))], {})
    ]
    sequences = credit.assign(items)
    assert [at_trained(s, "advantage")[0] for s in sequences] == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert [at_trained(s, "returns")[0] for s in sequences] == [1.0, 3.0]


def test_the_penalty_on_length_stands_on_the_last_token():
    """Limit 4, growing over the last 2: three tokens cost ½. Returns with γ = λ = 1: ½ everywhere."""
    credit = baseline(functools.partial(gae, gae_lambda=1.0), max_tokens=4, overlong_buffer=2)
    sequence = assigned(credit, REPLY)
    assert at_trained(sequence, "returns") == pytest.approx([0.5, 0.5, 0.5])
    assert sequence.facts["total_reward"] == 0.5


def test_failed_members_are_left_out_and_one_alone_is_trained():
    """It needs no fellows: the critic is its baseline."""
    judged = group("a", ("bc", None), ("de", 1.0))
    assert [item.id for item in baseline().items([judged], {})] == ["a/1"]


def test_truncated_ones_may_be_left_out():
    credit = baseline(train_truncated=False)
    assert [item.id for item in credit.items([truncated(0.0), group("b", ("cd", 1.0))], {})] == ["b/0"]


def test_an_empty_round_stays_empty():
    assert baseline().assign([]) == []


def test_truncated_support_is_refused():
    with pytest.raises(RecipeError, match="full distribution"):
        baseline().items([group("a", ("b", 1.0), sampling=Sampling(top_p=0.9))], {})
