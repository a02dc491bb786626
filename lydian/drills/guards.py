"""Guards: what holds of a healthy pipeline, measured. Each runs the real parts; none knows which fault is switched on.

Where a guard needs an independent answer it takes the plain way: the transformers model alone, one sequence at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lydian.data.forest import Item, plant, sequences_of, site_weights
from lydian.data.trajectory import Sampling
from lydian.drills.fault import Finding
from lydian.drills.rehearsal import (
    ADAPTER,
    MAX_TOKENS,
    answered,
    corpus,
    fresh_model,
    learner_of,
    log_likelihoods,
    preferences,
    rehearse,
    settings_of,
    solutions,
    template,
    tiny,
)
from lydian.models.adapters import switched_off
from lydian.models.merge import merged_tensors
from lydian.models.policy import Policy
from lydian.models.weights import tensors_digest
from lydian.training.algorithms import ALGORITHMS
from lydian.training.learner import Batching
from lydian.training.terms import KLInReward

ROUNDING = 1e-3
"""Nats (or a relative difference) that no rounding in fp32 comes near, and every fault exceeds."""


def sites_are_the_tokens_of_the_assistant() -> Finding:
    """As many sites as tokens that the assistant wrote, by the roles that the template gives."""
    items = corpus(ALGORITHMS["sft"])
    weights = site_weights(items, "token_mean")
    num_sites = sum(len(forest.sites.target) for forest in plant(items, weights))
    roles = [role for talk in solutions() for role in template().encode_conversation(talk.messages).roles]
    num_tokens = roles.count("assistant")
    return Finding(measured=f"{num_sites} sites, {num_tokens} tokens", is_caught=num_sites != num_tokens)


def every_reply_trains_its_stop_token() -> Finding:
    """The last trained token of each reply ends it."""
    items = sequences_of(corpus(ALGORITHMS["sft"]))
    last = [list(itertools.compress(item.tokens, item.trained))[-1] for item in items]
    num = sum(token in template().stop_tokens for token in last)
    return Finding(measured=f"{num} of {len(items)} replies", is_caught=num < len(items))


def the_forest_agrees_with_one_sequence_at_a_time() -> Finding:
    """log π at every site equals that of the model alone."""
    items = corpus(ALGORITHMS["dpo"])
    found = _forest_logprobs(Policy(fresh_model(), layout="shared"), items)
    gaps = [(found[s.id] - log_likelihoods(tiny().model, s)).abs().max().item() for s in sequences_of(items)]
    return _small(max(gaps), "{:.1e} nats apart")


def a_new_adapter_changes_nothing() -> Finding:
    """With a fresh adapter the model gives the base's logprobs."""
    return _small(_distance(fresh_model(ADAPTER), tiny().model), "{:.1e} nats from the base")


def merged_weights_equal_the_adapter() -> Finding:
    """The published weights, adapter merged, give the logprobs of base and trained adapter."""
    learner = rehearse("sft", adapter=ADAPTER).learner
    merged = fresh_model()
    merged.load_state_dict(learner.publish().tensors, strict=False)  # tied names appear once
    return _small(_distance(merged, learner.policy.model), "{:.1e} nats apart")


def the_base_keeps_its_digest() -> Finding:
    """Under a trained adapter lies the base that was loaded, bit for bit."""
    model = rehearse("sft", adapter=ADAPTER).learner.policy.model
    with switched_off(model):
        after = tensors_digest(merged_tensors(model))
    before = tensors_digest(merged_tensors(tiny().model))
    return Finding(measured=f"{before[:6]} → {after[:6]}", is_caught=before != after)


def dpo_starts_at_log_two() -> Finding:
    """Before the first step policy and reference are one, so every margin is 0."""
    loss = rehearse("dpo").metrics[0]["loss"]
    return Finding(measured=f"loss {loss:.5f}", is_caught=abs(loss - math.log(2)) > ROUNDING / 10)


def the_reference_stays_where_it_was() -> Finding:
    """log π_reference of the same tokens is the same after a step."""
    done = rehearse("grpo", kl=KLInReward(place="reward", coef=0.1))
    unmeasured = [replace(s, streams={"advantage": s.streams["advantage"]}) for s in done.rounds[0]]
    after = sequences_of(done.learner.with_fixed_policies(unmeasured, num_steps=1))
    moved = max(
        abs(old - new)
        for a, b in zip(done.rounds[0], after, strict=True)
        for old, new in zip(a.streams["reference_logprobs"], b.streams["reference_logprobs"], strict=True)
    )
    return _small(moved, "moved {:.1e} nats")


def the_sampler_agrees_with_the_learner() -> Finding:
    """On policy, also after a step, both give the sampled tokens the same log-probability at their temperature."""
    sampling = Sampling(temperature=0.6, max_tokens=MAX_TOKENS)
    steps = rehearse("reinforce_no_baseline", sampling=sampling, rounds=2).metrics
    return _small(max(step["behaviour_gap"] for step in steps), "behaviour_gap {:.1e} nats")


def the_first_update_of_a_round_has_kl_zero() -> Finding:
    """The proximal policy is the current one until the first step of the round; two rounds of two steps."""
    steps = rehearse("grpo", rounds=2, epochs=2).metrics
    return _small(max(step["kl_k3"] for step in steps[::2]), "kl_k3 {:.1e} nats")


def any_split_gives_the_same_gradient() -> Finding:
    """A step in one forward pass, and the same step with every sequence in a pass of its own."""
    whole, split = (_sft_gradient(Batching(batch_tokens=n)) for n in (4096, 1))
    return _small(((whole - split).norm() / whole.norm()).item(), "{:.1e} of the gradient")


def advantages_have_mean_0_and_deviation_1_in_each_group() -> Finding:
    """GRPO's advantages, group by group."""
    groups: dict[str, list[float]] = {}
    for sequence in rehearse("grpo").rounds[0]:
        groups.setdefault(sequence.group, []).append(_advantage(sequence.streams))
    values = torch.tensor(list(groups.values()))
    means, deviations = values.mean(1), values.std(1)
    return Finding(
        measured=f"means up to {means.abs().max():.1e}, deviations {deviations.min():.3f} to {deviations.max():.3f}",
        is_caught=bool((means.abs() > ROUNDING).any() or ((deviations - 1).abs() > ROUNDING).any()),
    )


def rewarded_completions_gain_on_the_others() -> Finding:
    """After one step Σ log π has risen more where the reward was 1 than where it was 0."""
    done = rehearse("grpo")
    gains: dict[float, list[float]] = {0.0: [], 1.0: []}
    for s in done.rounds[0]:
        after, before = (log_likelihoods(model, s).sum().item() for model in (done.learner.policy.model, tiny().model))
        gains[s.facts["reward"]].append(after - before)
    right, wrong = (sum(values) / len(values) for values in (gains[1.0], gains[0.0]))
    return Finding(measured=f"right {right:+.2f}, wrong {wrong:+.2f} nats", is_caught=right <= wrong)


def chosen_replies_gain_on_the_rejected() -> Finding:
    """After one step of DPO the text that people chose has gained on the one they rejected."""
    trained = rehearse("dpo").learner.policy.model
    gains = []
    for preference in preferences():
        texts = [answered(preference, reply) for reply in (preference.chosen, preference.rejected)]
        after, before = (
            [log_likelihoods(model, text).sum().item() for text in texts] for model in (trained, tiny().model)
        )
        gains.append((after[0] - before[0]) - (after[1] - before[1]))
    gain = sum(gains) / len(gains)
    return Finding(measured=f"margin {gain:+.2f} nats", is_caught=gain <= 0)


def with_kl_in_the_reward_the_loss_holds_no_other() -> Finding:
    """On policy every ratio is 1, so the loss is −Σ weight · advantage, also a step away from the reference."""
    done = rehearse("grpo", kl=KLInReward(place="reward", coef=1.0), rounds=2)
    items = done.rounds[1]
    weights = site_weights(items, done.settings.normaliser)
    expected = -sum(weights[s.id] * s.num_trained * _advantage(s.streams) for s in items)
    loss = done.metrics[1]["loss"]
    return Finding(measured=f"loss {loss:z.4f}, expected {expected:z.4f}", is_caught=abs(loss - expected) > ROUNDING)


def _small(value: float, text: str) -> Finding:
    return Finding(measured=text.format(value), is_caught=not value < ROUNDING)


def _advantage(streams: Mapping[str, tuple[float, ...]]) -> float:
    return streams["advantage"][-1]  # one for all tokens of a completion


def _distance(a: torch.nn.Module, b: torch.nn.Module) -> float:
    """The largest difference of log π over the replies of the corpus."""
    items = sequences_of(corpus(ALGORITHMS["sft"]))
    return max((log_likelihoods(a, s) - log_likelihoods(b, s)).abs().max().item() for s in items)


def _forest_logprobs(policy: Policy, items: list[Item]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for forest in plant(items, site_weights(items, "pair_mean")):
        with torch.no_grad():
            logprobs = policy.logprobs(forest)[0]
        found |= {name: logprobs[forest.sites.sequence == k] for k, name in enumerate(forest.sequence_ids)}
    return found


def _sft_gradient(batching: Batching) -> Tensor:
    learner = learner_of("sft", settings_of("sft", batching=batching))
    learner.accumulate(corpus(ALGORITHMS["sft"]))
    return torch.cat([p.grad.flatten() for p in learner.policy.model.parameters() if p.grad is not None])
