"""Expected gradients by exact enumeration, through the real pipeline: credit, forest, policy, objective, learner.

A random Llama over 4 tokens writes 3 of them, so there are 64 completions, all listed with their probability. The
expectation over samples is a sum: each completion stands once in the step, its advantage multiplied by its probability
(losses are linear in the advantage at ratio 1). What it must equal is the gradient of the expected reward, from the
model's plain logits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lydian.data.sequence import Sequence as Trained
from lydian.models.policy import Policy
from lydian.objectives.advantage import group_mean, leave_one_out, raw_reward
from lydian.objectives.policy_gradient import cispo, clip, gspo_token, ratio, reinforce, sapo
from lydian.training.credit import PolicyGradient
from lydian.training.learner import Learner
from lydian.training.optim import OptimiserSettings
from lydian.training.terms import KL, Correction, KLInLoss, KLInReward

TOKENS, LENGTH, PROMPT = 4, 3, (1, 2)
COMPLETIONS = list(itertools.product(range(TOKENS), repeat=LENGTH))
REWARD = torch.rand(len(COMPLETIONS), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
Gradient = dict[str, Tensor]


def llama(seed: int = 0) -> LlamaForCausalLM:
    """Large weights, so that the distribution is far from uniform and gradients are far from zero."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        initializer_range=0.7,
    )
    return LlamaForCausalLM(config).double()


def plain_logprobs(model: LlamaForCausalLM) -> Tensor:
    """log π of each token of each completion, [64, 3], one sequence a row without a mask."""
    rows = torch.tensor([(*PROMPT, *completion) for completion in COMPLETIONS])
    logits = model(input_ids=rows).logits[:, len(PROMPT) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, rows[:, len(PROMPT) :, None]).squeeze(-1)


def gradient_of(model: LlamaForCausalLM, value: Tensor) -> Gradient:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


def true_gradient(model: LlamaForCausalLM, reward: Tensor = REWARD) -> Gradient:
    """∇ Σ_y π(y) R(y)."""
    return gradient_of(model, (plain_logprobs(model).sum(1).exp() * reward).sum())


def probabilities(model: LlamaForCausalLM) -> Tensor:
    return plain_logprobs(model).sum(1).exp().detach()


def completions(behaviour: LlamaForCausalLM, reward: Tensor = REWARD, *, copies: int = 1) -> list[Trained]:
    """All completions as the credit assignment gets them; with copies, each in a group of its own."""
    logprobs = plain_logprobs(behaviour).detach().tolist()
    return [
        Trained(
            id=f"{k}",
            group=f"{k}" if copies > 1 else "prompt",
            tokens=(*PROMPT, *completion),
            trained=(False,) * len(PROMPT) + (True,) * LENGTH,
            streams={"behaviour_logprobs": (0.0,) * len(PROMPT) + tuple(logprobs[k])},
            facts={"reward": reward[k].item(), "is_truncated": 0.0},
        )
        for k, completion in enumerate(COMPLETIONS)
    ]


def weighted(sequences: Sequence[Trained], factor: Tensor) -> list[Trained]:
    """Advantages times a factor a sequence; × 64, since the constant normaliser divides by the number of sequences."""
    return [
        replace(s, streams={**s.streams, "advantage": tuple(len(factor) * f * a for a in s.streams["advantage"])})
        for s, f in zip(sequences, factor.tolist(), strict=True)
    ]


def estimated(
    model: LlamaForCausalLM, items: Sequence[Trained], objective: Callable = reinforce, **settings
) -> Gradient:
    """− the gradient that the learner accumulates: the direction of the update."""
    learner = make_learner(model, objective, **settings)
    model.zero_grad()
    learner.accumulate(items)
    return {name: torch.zeros_like(p) if p.grad is None else -p.grad for name, p in model.named_parameters()}


def make_learner(model: LlamaForCausalLM, objective: Callable = reinforce, **settings) -> Learner:
    return Learner(
        Policy(model),
        objective=objective,
        normaliser="constant",
        constant=1.0,
        optimiser=OptimiserSettings(learning_rate=0.0),
        **settings,
    )


def distance(one: Gradient, other: Gradient) -> float:
    """‖one − other‖ / ‖other‖ over all parameters."""
    difference, size = (
        torch.cat([x.flatten() for x in xs]) for xs in ([one[k] - other[k] for k in one], other.values())
    )
    return (difference.norm() / size.norm()).item()


def scaled(gradient: Gradient, factor: float) -> Gradient:
    return {name: factor * value for name, value in gradient.items()}


CLOSE = 2e-5
"""Logprobs come from fp32 logits; a wrong term shows at 1e-1."""


def expected_advantage(advantage: Callable, model: LlamaForCausalLM, size: int) -> Tensor:
    """E[A_1 | y_1 = y] for each completion y, over all groups of `size` independent samples, by the real credit."""
    probability = probabilities(model)
    others = list(itertools.product(range(len(COMPLETIONS)), repeat=size - 1))
    single = completions(model)
    groups = [
        replace(single[k], id=f"{y}.{n}.{i}", group=f"{y}.{n}")
        for y in range(len(COMPLETIONS))
        for n, rest in enumerate(others)
        for i, k in enumerate((y, *rest))
    ]
    assigned = PolicyGradient(advantage=advantage).assign(groups)
    first = torch.tensor([s.streams["advantage"][-1] for s in assigned[::size]], dtype=torch.float64)
    weight = torch.stack([probability[list(rest)].prod() for rest in others])
    return (first.view(len(COMPLETIONS), len(others)) * weight).sum(1)


def from_advantage(model: LlamaForCausalLM, advantage: Tensor, objective: Callable = reinforce) -> Gradient:
    """E[A ∇ log π] through the learner, for a given expected advantage of each completion."""
    sequences = PolicyGradient(advantage=raw_reward).assign(completions(model, advantage))
    return estimated(model, weighted(sequences, probabilities(model)), objective)


@pytest.mark.parametrize("objective", [reinforce, ratio, clip, cispo, sapo])
def test_raw_rewards_are_unbiased(objective: Callable):
    """At ratio 1 all of them have the plain policy gradient: clip's bounds are not reached, sapo's slope there is 1,
    cispo's weight is 1."""
    model = llama()
    assert distance(from_advantage(model, REWARD, objective), true_gradient(model)) < CLOSE


def test_a_constant_baseline_changes_nothing():
    """E[b ∇ log π] = b ∇ Σ π = 0."""
    model = llama()
    assert (
        distance(from_advantage(model, REWARD - 3.0), true_gradient(model)) < 5 * CLOSE
    )  # a difference of larger terms


def test_leave_one_out_is_unbiased_and_the_group_mean_shrinks_by_one_minus_one_over_g():
    """G = 2: the group mean holds half of the sample's own reward, so (G − 1)/G = ½ of the gradient is left."""
    model = llama()
    truth = true_gradient(model)
    assert distance(from_advantage(model, expected_advantage(leave_one_out, model, 2)), truth) < CLOSE
    own = from_advantage(model, expected_advantage(group_mean, model, 2))
    assert distance(own, scaled(truth, 0.5)) < CLOSE
    assert distance(own, truth) > 0.4


def off_policy(model: LlamaForCausalLM, behaviour: LlamaForCausalLM, *correction: Correction) -> Gradient:
    """The expected update from samples of another policy: the sum runs over the behaviour's probabilities."""
    sequences = PolicyGradient(advantage=raw_reward).assign(completions(behaviour))
    return estimated(model, weighted(sequences, probabilities(behaviour)), correction=correction)


def test_whole_sequence_ratios_mend_another_behaviour_policy_exactly():
    """E_μ[(π/μ) R ∇log π] = ∇J; without weights the gap shows; with the ratio of each token alone part of it stays."""
    model, behaviour = llama(), llama(seed=1)
    truth = true_gradient(model)
    whole = Correction(level="sequence", high=1e9)
    assert distance(off_policy(model, behaviour, whole), truth) < CLOSE
    assert distance(off_policy(model, behaviour), truth) > 0.1
    assert distance(off_policy(model, behaviour, Correction(level="token", high=1e9)), truth) > 0.01


@pytest.mark.parametrize(
    ("correction", "bounded"),
    [
        (Correction(level="sequence", high=1.5), lambda w: w.clamp(max=1.5)),
        (Correction(level="sequence", mode="band", low=0.5, high=1.5), lambda w: w * ((w >= 0.5) & (w <= 1.5))),
        (Correction(level="sequence", mode="reject", low=0.5, high=1.5), lambda w: ((w >= 0.5) & (w <= 1.5)).double()),
    ],
)
def test_bounded_ratios_have_the_bias_that_they_state(correction: Correction, bounded: Callable):
    """The update is Σ_y μ(y) f(w(y)) R(y) ∇log π(y) with the bounded weight f(w), and is not ∇J."""
    model, behaviour = llama(), llama(seed=1)
    mu, logprobs = probabilities(behaviour), plain_logprobs(model).sum(1)
    weight = bounded(logprobs.detach().exp() / mu)
    stated = gradient_of(model, (mu * weight * REWARD * logprobs).sum())
    found = off_policy(model, behaviour, correction)
    assert distance(found, stated) < CLOSE
    assert distance(found, true_gradient(model)) > 0.02


def test_normalised_weights_have_mean_one_over_the_step():
    """Uniform behaviour: weights 64 π(y) of whole sequences, whose mean over all completions is 1 already; times three
    (a reward scaled down by three) the division must bring the update back."""
    model, behaviour = llama(), llama(seed=1)
    sequences = PolicyGradient(advantage=raw_reward).assign(completions(behaviour))
    weights = (plain_logprobs(model).sum(1).exp() / probabilities(behaviour)).detach()
    plain = estimated(model, sequences, correction=[Correction(level="sequence", high=1e9)])
    learner = make_learner(model, correction=[Correction(level="sequence", high=1e9, normalise=True)])
    items = learner.with_fixed_policies(sequences, num_steps=1)
    model.zero_grad()
    learner.accumulate(items)
    normalised = {name: -p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert (
        distance(
            {k: normalised.get(k, torch.zeros_like(v)) for k, v in plain.items()},
            scaled(plain, 1 / weights.mean().item()),
        )
        < CLOSE
    )


def test_behaviour_as_anchor_holds_the_ratio_once():
    """Bypass: the objective's own ratio π/μ carries the gap; the token weights beside it are measured, not applied."""
    model, behaviour = llama(), llama(seed=1)
    sequences = weighted(PolicyGradient(advantage=raw_reward).assign(completions(behaviour)), probabilities(behaviour))
    bypass = estimated(model, sequences, ratio, anchor="behaviour")
    with_weights = estimated(model, sequences, ratio, anchor="behaviour", correction=[Correction(high=1e9)])
    assert distance(with_weights, bypass) == 0
    by_hand = plain_logprobs(model) - plain_logprobs(behaviour).detach()
    stated = gradient_of(model, (probabilities(behaviour) * REWARD * by_hand.exp().sum(1)).sum())
    assert distance(bypass, stated) < CLOSE


def kl_update(kl: KL, *, reward: Tensor) -> tuple[Gradient, LlamaForCausalLM, LlamaForCausalLM]:
    """The expected update with a KL to a reference, and the two models."""
    model, reference = llama(), llama(seed=2)
    learner = make_learner(model_with(model, reference), kl=kl)
    model_with(learner.policy.model, llama())  # the reference was taken; now the policy moves away from it
    model = learner.policy.model
    items = learner.with_fixed_policies(completions(model, reward), num_steps=1)
    items = PolicyGradient(advantage=raw_reward, kl=kl if isinstance(kl, KLInReward) else None).assign(items)
    model.zero_grad()
    learner.accumulate(weighted(items, probabilities(model)) if isinstance(kl, KLInReward) else items)
    found = {name: torch.zeros_like(p) if p.grad is None else -p.grad for name, p in model.named_parameters()}
    return found, model, reference


def model_with(model: LlamaForCausalLM, other: LlamaForCausalLM) -> LlamaForCausalLM:
    model.load_state_dict(other.state_dict())
    return model


def sequence_kl(model: LlamaForCausalLM, reference: LlamaForCausalLM) -> Tensor:
    """KL(π ‖ π_reference) of whole completions."""
    logprobs = plain_logprobs(model).sum(1)
    return (logprobs.exp() * (logprobs - plain_logprobs(reference).sum(1).detach())).sum()


def test_kl_in_the_reward_is_the_gradient_of_the_sequences_kl():
    """∇(E[R] − β KL(π ‖ π_reference)), KL of whole completions: k1 in the reward is unbiased in value and gradient."""
    beta = 0.4
    found, model, reference = kl_update(KLInReward(place="reward", coef=beta), reward=REWARD)
    objective = (plain_logprobs(model).sum(1).exp() * REWARD).sum() - beta * sequence_kl(model, reference)
    assert distance(found, gradient_of(model, objective)) < CLOSE
    assert distance(found, true_gradient(model)) > 0.1


def per_token_kl(model: LlamaForCausalLM, reference: LlamaForCausalLM, *, is_reverse: bool = True) -> Tensor:
    """Σ_t E over prefixes (held constant) of the KL of the next token: what a KL in the loss can see."""
    rows = torch.tensor([(*PROMPT, *completion) for completion in COMPLETIONS])
    own, other = (m(input_ids=rows).logits[:, len(PROMPT) - 1 : -1].log_softmax(-1) for m in (model, reference))
    other = other.detach()
    terms = own.exp() * (own - other) if is_reverse else other.exp() * (other - own)
    return (probabilities(model)[:, None] * terms.sum(-1)).sum()


@pytest.mark.parametrize(("estimator", "is_reverse"), [("k2", True), ("straight_through", True), ("k3", False)])
def test_kl_in_the_loss_has_the_gradient_that_its_table_states(estimator: str, is_reverse: bool):
    """With samples of π itself and prefixes held constant: k2 and the straight-through form give ∇KL(π ‖ ref), k3 gives
    ∇KL(ref ‖ π). The expectation over samples is put into the normaliser: each completion weighs π(y)."""
    model, reference = llama(), llama(seed=2)
    learner = make_learner(model_with(llama(), reference), kl=KLInLoss(coef=1.0, estimator=estimator))
    policy = model_with(learner.policy.model, model)
    items = PolicyGradient(advantage=raw_reward).assign(completions(policy, torch.zeros_like(REWARD)))
    weights = dict(zip((s.id for s in items), probabilities(policy).tolist(), strict=True))
    policy.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lydian.training.learner.site_weights", lambda *_, **__: weights)
        learner.accumulate(items)
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in policy.named_parameters()}
    stated = gradient_of(policy, per_token_kl(policy, reference, is_reverse=is_reverse))
    wrong = gradient_of(policy, per_token_kl(policy, reference, is_reverse=not is_reverse))
    assert distance(found, stated) < 1e-4
    assert distance(found, wrong) > 0.1


def test_gspo_token_at_ratio_one_is_the_policy_gradient():
    """Its ratio is 1 there, and each token's gradient is its own."""
    objective = functools.partial(gspo_token, clip_low=0.2, clip_high=0.2)
    model = llama()
    assert distance(from_advantage(model, REWARD, objective), true_gradient(model)) < CLOSE
