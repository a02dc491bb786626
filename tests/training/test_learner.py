"""The learner: one reduction whatever the split, references and proximal policies in their places, exact resume."""

from __future__ import annotations

import copy
import functools
import math
import random
from collections.abc import Callable

import pytest
import torch

from lydian.data.forest import Item, Normaliser
from lydian.data.sequence import Pair, Sequence
from lydian.errors import RunError
from lydian.models.policy import Policy
from lydian.objectives.likelihood import nll
from lydian.objectives.policy_gradient import clip, reinforce
from lydian.objectives.preference import dpo
from lydian.training.algorithms import ALGORITHMS
from lydian.training.learner import Batching, Learner
from lydian.training.optim import OptimiserSettings, make_optimiser
from lydian.training.terms import KLInLoss
from tests.models.families import VOCABULARY, make


def answers(num_groups: int = 4, *, with_advantage: bool = True, seed: int = 0) -> list[Item]:
    rng = random.Random(seed)
    items: list[Item] = []
    for g in range(num_groups):
        prompt = tuple(rng.randrange(3, VOCABULARY) for _ in range(4))
        for k in range(3):
            answer = tuple(rng.randrange(3, VOCABULARY) for _ in range(1 + 3 * k + g))
            advantage = rng.uniform(-1, 1)
            tokens = prompt + answer
            items.append(
                Sequence(
                    id=f"{g}/{k}",
                    group=str(g),
                    tokens=tokens,
                    trained=(False,) * 4 + (True,) * len(answer),
                    streams={"advantage": (advantage,) * len(tokens)} if with_advantage else {},
                )
            )
    return items


def pairs(num: int = 4) -> list[Item]:
    items = answers(num, with_advantage=False)
    made: list[Item] = []
    for n in range(num):
        sides = []
        for is_chosen in (0, 1):
            s = items[3 * n + is_chosen]
            assert isinstance(s, Sequence)
            facts = {"pair": float(n), **dict.fromkeys(("is_chosen", "is_desirable"), float(is_chosen))}
            sides.append(Sequence(id=s.id, group=s.group, tokens=s.tokens, trained=s.trained, facts=facts))
        made.append(Pair(chosen=sides[1], rejected=sides[0]))
    return made


def learner(
    objective: Callable = nll,
    normaliser: Normaliser = "token_mean",
    *,
    rate: float = 1e-2,
    batching: Batching | None = None,
    kl: KLInLoss | None = None,
    constant: float | None = None,
) -> Learner:
    return Learner(
        Policy(make("llama")),
        objective=objective,
        normaliser=normaliser,
        constant=constant,
        optimiser=OptimiserSettings(learning_rate=rate),
        batching=batching,
        kl=kl,
    )


def moved(trainer: Learner) -> None:
    """The policy, away from its reference by a fixed random step."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in trainer.policy.model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def gradients(trainer: Learner) -> list[torch.Tensor]:
    return [p.grad.clone() for p in trainer.policy.model.parameters() if p.grad is not None]


CASES: dict[str, tuple[Callable, Normaliser, Callable[[], list[Item]]]] = {
    "nll, token mean": (nll, "token_mean", functools.partial(answers, with_advantage=False)),
    "reinforce, sequence mean": (reinforce, "sequence_mean", answers),
    "clip, constant": (clip, "constant", answers),
} | {
    row.name: (
        row.objective,
        row.defaults.get("normaliser", "token_mean"),
        pairs if row.data == "preferences" else answers,
    )
    for row in ALGORITHMS.values()
    if row.objective is not None and row.head is None and (row.data == "preferences" or row.advantage is not None)
}
"""Every row of policies that takes pairs or advantages, besides two of other forms: new rows are covered at once."""


@pytest.mark.parametrize("case", CASES)
def test_any_split_gives_the_same_loss_and_gradient(case: str):
    """One forest for the whole step, against the smallest forests that the items allow; the policy has left its
    reference, so that what couples a step (KTO's KL, AOT's order, BCO's shift) is not zero."""
    objective, normaliser, items = CASES[case]
    results = []
    for batching in (Batching(row_tokens=512, batch_tokens=4096), Batching(batch_tokens=1)):
        trainer = learner(objective, normaliser, batching=batching, constant=10.0)
        moved(trainer)
        statistics = trainer.accumulate(items())
        results.append((statistics, gradients(trainer)))
    (one, whole), (many, split) = results
    assert one.keys() == many.keys()
    for name in one:
        assert one[name] == pytest.approx(many[name], rel=1e-4, abs=1e-6), name
    for a, b in zip(whole, split, strict=True):
        assert (a - b).norm() <= 1e-5 * a.norm() + 1e-6


def test_token_mean_by_a_plain_loop():
    """The loss equals −Σ log π / Σ tokens, computed with transformers alone over all sequences of the step."""
    items = answers(with_advantage=False)
    model, total, count = make("llama"), 0.0, 0
    for s in items:
        assert isinstance(s, Sequence)
        logprobs = model(torch.tensor([s.tokens])).logits[0, :-1].log_softmax(-1)
        picked = logprobs.gather(1, torch.tensor(s.tokens[1:])[:, None]).squeeze(1)[torch.tensor(s.trained[1:])]
        total, count = total - picked.sum().item(), count + len(picked)
    assert learner().accumulate(items)["loss"] == pytest.approx(total / count, rel=1e-5)


def test_dpo_starts_at_log_two_against_the_weights_in_memory():
    """The reference is the weights when the learner was made, here after training, not those on any disk."""
    first = learner(nll)
    first.accumulate(answers(with_advantage=False))
    first.step(0.0)
    second = Learner(
        first.policy, objective=dpo, normaliser="pair_mean", optimiser=OptimiserSettings(learning_rate=1e-2)
    )
    assert second.accumulate(pairs())["loss"] == pytest.approx(math.log(2), abs=1e-6)
    second.step(0.0)
    assert second.accumulate(pairs())["loss"] < math.log(2) - 0.01  # and the reference has stayed behind


def test_reference_pass_leaves_the_weights_as_they_are():
    trainer = learner(dpo, "pair_mean")
    trainer.accumulate(pairs())
    trainer.step(0.0)
    before = copy.deepcopy(trainer.policy.model.state_dict())
    trainer.accumulate(pairs())
    for name, tensor in trainer.policy.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_proximal_policy_is_current_in_the_first_step_and_fixed_after():
    """Ratio exactly 1 without a stored proximal policy; with one, the second step's ratio is not 1."""
    trainer = learner(clip, "sequence_mean")
    assert trainer.accumulate(answers())["ratio"] == 1.0
    trainer.policy.model.zero_grad()
    fixed = trainer.with_fixed_policies(answers(), num_steps=2)
    assert trainer.accumulate(fixed)["ratio"] == pytest.approx(1.0, abs=1e-5)
    trainer.step(0.0)
    assert abs(trainer.accumulate(fixed)["ratio"] - 1) > 1e-3


def test_kl_penalty_is_zero_at_the_start_and_pulls_back_later():
    trainer = learner(reinforce, "token_mean", kl=KLInLoss(coef=0.5, estimator="k3"))
    assert trainer.accumulate(answers())["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    trainer.step(0.0)
    assert trainer.accumulate(answers())["kl_reference"] > 1e-4


def test_zero_advantage_sequences_stand_in_the_denominator_and_cost_nothing():
    """Dropping their forward pass changes neither loss nor gradient against computing them."""
    items = answers()
    silent = []
    for i, s in enumerate(items):
        assert isinstance(s, Sequence)
        zero = {"advantage": (0.0,) * len(s.tokens)}
        silent.append(
            s if i % 2 else Sequence(id=s.id, group=s.group, tokens=s.tokens, trained=s.trained, streams=zero)
        )
    skipping, computing = learner(reinforce, "sequence_mean"), learner(reinforce, "sequence_mean")
    computing._has_signal = lambda item: True  # type: ignore[method-assign]
    a, b = skipping.accumulate(silent), computing.accumulate(silent)
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    for x, y in zip(gradients(skipping), gradients(computing), strict=True):
        torch.testing.assert_close(x, y, atol=1e-7, rtol=1e-4)


def test_a_step_without_signal_changes_nothing():
    trainer = learner(reinforce, "token_mean")
    silent = []
    for s in answers():
        assert isinstance(s, Sequence)
        zero = {"advantage": (0.0,) * len(s.tokens)}
        silent.append(Sequence(id=s.id, group=s.group, tokens=s.tokens, trained=s.trained, streams=zero))
    before = trainer.weights().digest
    trainer.accumulate(silent)
    assert trainer.step(0.0)["gradient_norm"] == 0.0
    assert trainer.weights().digest == before


def test_missing_streams_fail_before_anything_is_learned():
    with pytest.raises(RunError, match="advantage"):
        learner(reinforce).accumulate(answers(with_advantage=False))


def test_a_gradient_that_is_not_finite_stops_and_names_the_parameter():
    trainer = learner()
    trainer.accumulate(answers(with_advantage=False))
    name, parameter = next(iter(trainer.policy.model.named_parameters()))
    assert parameter.grad is not None
    parameter.grad[0] = float("nan")
    before = trainer.weights().digest
    with pytest.raises(RunError, match=name):
        trainer.step(0.0)
    assert trainer.weights().digest == before


def test_published_weights_never_change():
    trainer = learner()
    published = trainer.publish()
    frozen = {name: tensor.clone() for name, tensor in published.tensors.items()}
    trainer.accumulate(answers(with_advantage=False))
    trainer.step(0.0)
    assert all(torch.equal(published.tensors[name], frozen[name]) for name in frozen)
    assert trainer.publish().version == published.version + 1 == 2
    assert trainer.weights().digest != published.digest


def test_state_restores_bitwise():
    """Two steps at once equal a step, a new learner with the state, and a step: weights and moments."""
    items = answers(with_advantage=False)
    whole = learner()
    for progress in (0.0, 0.5):
        whole.accumulate(items)
        whole.step(progress)
    first, second = learner(), learner()
    first.accumulate(items)
    first.step(0.0)
    second.load_state(first.state())
    second.accumulate(items)
    second.step(0.5)
    assert second.weights().digest == whole.weights().digest


def test_state_of_another_model_is_refused():
    other = Learner(
        Policy(make("gpt2")), objective=nll, normaliser="token_mean", optimiser=OptimiserSettings(learning_rate=1e-2)
    )
    with pytest.raises(RunError, match="same names"):
        learner().load_state(other.state())


def test_learning_rate_schedules_by_hand():
    """Warm-up over a tenth, then linear or cosine to zero: at .55, halfway down, both are at one half."""
    for schedule in ("linear", "cosine"):
        settings = OptimiserSettings(learning_rate=2.0, schedule=schedule, warmup_share=0.1)
        assert settings.learning_rate_at(0.05) == pytest.approx(1.0)
        assert settings.learning_rate_at(0.1) == pytest.approx(2.0)
        assert settings.learning_rate_at(0.55) == pytest.approx(1.0)
        assert settings.learning_rate_at(1.0) == pytest.approx(0.0)
    assert OptimiserSettings(learning_rate=2.0).learning_rate_at(0.9) == 2.0


def test_only_matrices_decay():
    model = make("llama")
    optimiser = make_optimiser(model.parameters(), OptimiserSettings(learning_rate=1e-2, weight_decay=0.1))
    decays = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    assert all(decays[id(p)] == (0.1 if p.ndim >= 2 else 0.0) for p in model.parameters())
