"""What stands beside an objective: corrections and bonuses with settings that are checked, and weights by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lydian.data.trajectory import Finish, Sampling
from lydian.data.verdict import Group, Scored
from lydian.errors import RecipeError
from lydian.models.policy import Policy
from lydian.objectives.advantage import group_mean, normalise_then_sum, remax
from lydian.objectives.policy_gradient import reinforce
from lydian.rollout.scripted import ScriptedEngine
from lydian.training.collect import Rollouts
from lydian.training.credit import PolicyGradient
from lydian.training.learner import Learner
from lydian.training.optim import OptimiserSettings
from lydian.training.terms import Correction, EntropyBonus, correction_weights
from lydian.verifiers import make_verifier
from tests.training.toys import STOP, Letters, group, ids_of, llama, problem, trajectory, verdict


@pytest.mark.parametrize(
    "bounds", [{"low": 0.5}, {"mode": "band", "low": 2.0, "high": 1.0}, {"mode": "reject", "low": -1.0}]
)
def test_bounds_out_of_order_are_refused(bounds: dict):
    with pytest.raises(RecipeError, match="low"):
        Correction(**bounds)


def test_corrections_multiply():
    """Ratios of 2 and ½ in one sequence: token weights truncated at 1.5: 1.5, .5. Their geometric mean is 1, inside
    [.9, 1.1]: kept. A second sequence of ratio 3 has mean 3: rejected whole."""
    behaviour = torch.zeros(3)
    proximal = torch.tensor([2.0, 0.5, 3.0]).log()
    by_token = Correction(high=1.5)
    whole = Correction(level="geometric", mode="reject", low=0.9, high=1.1)
    ids = torch.tensor([0, 0, 1])
    weights = correction_weights([by_token, whole], behaviour, proximal, ids, only_rejects=False)
    torch.testing.assert_close(weights, torch.tensor([1.5, 0.5, 0.0]))
    rejects = correction_weights([by_token, whole], behaviour, proximal, ids, only_rejects=True)
    assert rejects.tolist() == [1.0, 1.0, 0.0]


def test_the_entropy_bonus_follows_its_target():
    """Below the target the coefficient rises by delta, above it falls, within its bounds; without a target it stays."""
    steered = EntropyBonus(coef=0.01, target=1.0, delta=0.004, max_coef=0.012)
    assert steered.next_coef(0.01, 0.5) == pytest.approx(0.012)
    assert steered.next_coef(0.01, 1.5) == pytest.approx(0.006)
    assert EntropyBonus(coef=0.01).next_coef(0.01, 0.5) == 0.01


def test_an_entropy_bonus_spreads_the_policy():
    """No reward at all: with a bonus the gradient still moves, and entropy rises over a few steps."""
    trainer = Learner(
        Policy(llama()),
        objective=reinforce,
        normaliser="token_mean",
        optimiser=OptimiserSettings(learning_rate=3e-2),
        entropy=EntropyBonus(coef=-1.0, min_coef=-1.0),
    )
    items = PolicyGradient(advantage=group_mean).assign(
        PolicyGradient(advantage=group_mean).items([group("ab", ("cd", 0.0), ("ef", 0.0))], {})
    )
    measured = []
    for _ in range(5):
        statistics = trainer.accumulate(items)
        trainer.step(0.0)
        measured.append(statistics["entropy"])
        assert statistics["entropy_coef"] == -1.0
    assert measured[-1] < measured[0] - 0.05  # a negative coefficient sharpens it


def test_overlong_completions_are_penalised_and_may_be_left_out():
    """Limit 6, buffer 4: lengths 2, 4 and 6 (cut off) cost 0, ½ and 1. Rewards 1 each: 1, ½, 0, whose mean is ½."""
    members = tuple(
        Scored(trajectory=trajectory("p", reply, sample=k, finish=finish), verdict=verdict(1.0))
        for k, (reply, finish) in enumerate((("a", Finish.STOP), ("abc", Finish.STOP), ("abcdef", Finish.LENGTH)))
    )
    judged = [Group(problem=problem("p"), members=members)]
    credit = PolicyGradient(advantage=group_mean, max_tokens=6, overlong_buffer=4)
    found = {s.id: s.streams["advantage"][-1] for s in credit.assign(credit.items(judged, {}))}
    assert found == pytest.approx({"p/0": 0.5, "p/1": 0.0, "p/2": -0.5})
    left_out = PolicyGradient(advantage=group_mean, max_tokens=6, overlong_buffer=4, train_truncated=False)
    kept = left_out.assign(left_out.items(judged, {}))
    assert {s.id: s.streams["advantage"][-1] for s in kept} == pytest.approx({"p/0": 0.5, "p/1": 0.0})


def rollouts(script: dict, credit: PolicyGradient, **settings) -> Rollouts:
    return Rollouts(
        engine=ScriptedEngine(script, stop_tokens=Letters.stop_tokens),
        template=Letters(),
        verifier=make_verifier("pattern", pattern="[a-o]"),
        problems=[problem(letter) for letter in sorted(script)],
        sampling=Sampling(max_tokens=3),
        credit=credit,
        seed=0,
        **{"num_samples": 2, "problems_per_round": 0} | settings,
    )


RIGHT, WRONG = (*ids_of("b"), STOP), (*ids_of("z"), STOP)


def test_dynamic_sampling_replaces_groups_without_a_signal():
    """Of six problems only c and f have both right and wrong samples. Two a round are wanted: draws go on, at most
    three times two problems, until both are there; what was drawn and kept is counted."""
    script = {letter: [WRONG, WRONG] for letter in "abde"} | {"c": [RIGHT, WRONG], "f": [WRONG, RIGHT]}
    source = rollouts(script, PolicyGradient(advantage=group_mean), problems_per_round=2, most_draws=3)
    collected = source.collect(0)
    assert {s.group for s in source.assign(collected.items)} == {"c", "f"}
    assert collected.metrics["kept_groups"] == 2.0
    assert collected.metrics["drawn_groups"] in (4.0, 6.0)
    assert collected.metrics["drawn_groups"] == len(collected.groups)


def test_dynamic_sampling_reads_the_verdict_and_not_the_shaped_reward():
    """Both right, one of them with a bonus: their scores differ, their verdicts do not: dropped."""
    script = {"a": [RIGHT, (*ids_of("bb"), STOP)]}
    bonus = make_verifier(
        "weighted",
        parts={"content": {"name": "pattern", "pattern": "b"}, "format": {"name": "pattern", "pattern": "bb"}},
        weights={"content": 1.0, "format": 0.5},
        decided_by="content",
    )
    source = replace(rollouts(script, PolicyGradient(advantage=group_mean)), verifier=bonus)
    assert {s.facts["reward"] for s in source.collect(0).items} == {1.0, 1.5}
    assert replace(source, most_draws=2).collect(0).items == []


def test_remax_takes_the_reward_of_the_greedy_completion():
    """The script's third completion of each problem is what greedy decoding gives here: right for a, wrong for c."""

    class Greedy(ScriptedEngine):
        def generate(self, requests, progress=None):
            is_greedy = requests[0].sampling.temperature == 0
            script = {"a": [RIGHT], "c": [WRONG]} if is_greedy else {"a": [RIGHT, WRONG], "c": [RIGHT, WRONG]}
            return ScriptedEngine(script, stop_tokens=Letters.stop_tokens).generate(requests, progress)

    source = rollouts({"a": [], "c": []}, PolicyGradient(advantage=remax))
    source = replace(source, engine=Greedy({}, stop_tokens=Letters.stop_tokens))
    found = {s.id: s.streams["advantage"][-1] for s in source.assign(source.collect(0).items)}
    assert found == {"a/0": 0.0, "a/1": -1.0, "c/0": 1.0, "c/1": 0.0}


def test_parts_of_a_verdict_are_standardised_apart():
    """Two parts, content right for one sample and format for the other: each z is ±1 (population), sum 0."""
    verifier = make_verifier(
        "weighted",
        parts={"content": {"name": "pattern", "pattern": "b"}, "format": {"name": "pattern", "pattern": "z"}},
        weights={"content": 1.0, "format": 1.0},
        decided_by="content",
    )

    def advantage(rewards, group):
        return normalise_then_sum(rewards, group, weights=(1.0, 0.5), is_whitened=False, ddof=0, epsilon=0.0)

    source = rollouts({"a": [RIGHT, WRONG]}, PolicyGradient(advantage=advantage))
    source = replace(source, verifier=verifier)
    found = {s.id: s.streams["advantage"][-1] for s in source.assign(source.collect(0).items)}
    assert found == pytest.approx({"a/0": 0.5, "a/1": -0.5})
