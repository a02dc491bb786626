"""The functions that Stanford CS336's assignment 5 of spring 2026 asks for, forwarding to Lydian.

In the course's `tests/adapters.py`, import the `run_` names from here. Names and signatures are the course's; the
meaning of each argument is in its docstring. Two of the names have other signatures in 2025: see
`lydian.compat.cs336_2025`.

Departures, all where the course leaves a case open: a group of one response has standard deviation 0, a response
without tokens has loss 0 and still counts in the mean, ratios are clamped to e^±20, bf16 logits are read in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from lydian.compat._cs336 import (
    compute_per_instance_dpo_loss,
    get_packed_sft_dataset,
    get_response_log_probs,
    group_index,
    iterate_batches,
    masked_sum,
    parse_gsm8k_response,
    parse_mmlu_response,
    require,
    score,
    tokenize_prompt_and_output,
    unknown_option,
)
from lydian.compat._cs336_rewards import question_only_reward_fn, r1_zero_reward_fn
from lydian.compat.padded import padded
from lydian.errors import InputError
from lydian.objectives.advantage import group_mean, group_mean_std, raw_reward
from lydian.objectives.policy_gradient import clip, gspo, ratio, reinforce
from lydian.objectives.segments import segment_mean

Baseline = Literal["mean", "none"]
Normalizer = Literal["std", "none", "mean"]
Reweighting = Literal["none", "noclip", "grpo", "gspo"]
LossNormalization = Literal["sequence", "constant"]

_NAMES = (
    "tokenize_prompt_and_output",
    "get_response_log_probs",
    "compute_rollout_rewards",
    "compute_group_normalized_rewards",
    "compute_policy_gradient_loss",
    "aggregate_loss_across_microbatch",
    "grpo_train_step",
    "iterate_batches",
    "parse_mmlu_response",
    "parse_gsm8k_response",
    "compute_per_instance_dpo_loss",
)

__all__ = [
    "tokenize_prompt_and_output",
    "get_response_log_probs",
    "compute_rollout_rewards",
    "compute_group_normalized_rewards",
    "compute_policy_gradient_loss",
    "aggregate_loss_across_microbatch",
    "grpo_train_step",
    "get_packed_sft_dataset",
    "iterate_batches",
    "parse_mmlu_response",
    "parse_gsm8k_response",
    "compute_per_instance_dpo_loss",
    "r1_zero_reward_fn",
    "question_only_reward_fn",
]


def compute_rollout_rewards(
    reward_fn: Callable[[str, str], dict[str, float]], rollout_responses: list[str], repeated_ground_truths: list[str]
) -> tuple[Tensor, dict[str, float]]:
    """Rewards [N] of the responses in order, and mean_reward, mean_format_reward, mean_answer_reward."""
    rewards = score(reward_fn, rollout_responses, repeated_ground_truths)
    return rewards["reward"], {f"mean_{name}": values.mean().item() for name, values in rewards.items()}


def compute_group_normalized_rewards(
    raw_rewards: Tensor,
    group_size: int,
    baseline: Baseline = "mean",
    advantage_eps: float = 1e-6,
    advantage_normalizer: Normalizer = "std",
) -> tuple[Tensor, dict[str, float]]:
    """Advantages [N] within consecutive blocks of group_size, (r − b) / (s + eps), and statistics.

    baseline              mean: b is the group's mean; none: 0
    advantage_normalizer  std: s is the group's sample standard deviation (over G − 1); mean: the group's mean (MaxRL);
                          none: r − b as it is

    >>> compute_group_normalized_rewards(torch.tensor([1.0, 0.0]), 2, advantage_normalizer="none")[0].tolist()
    [0.5, -0.5]
    """
    if baseline not in ("mean", "none"):
        raise unknown_option("baseline", baseline, ("mean", "none"))
    if advantage_normalizer not in ("std", "none", "mean"):
        raise unknown_option("advantage_normalizer", advantage_normalizer, ("std", "none", "mean"))
    group = group_index(len(raw_rewards), group_size).to(raw_rewards.device)
    centred = group_mean(raw_rewards, group)
    advantages = centred if baseline == "mean" else raw_reward(raw_rewards, group)
    if advantage_normalizer == "mean":
        advantages = advantages / (raw_rewards - centred + advantage_eps)
    elif advantage_normalizer == "std" and baseline == "mean":
        advantages = group_mean_std(raw_rewards, group, ddof=1, epsilon=advantage_eps)
    elif advantage_normalizer == "std":
        variance = segment_mean(centred**2, group, len(group)) * group_size / max(1, group_size - 1)
        advantages = advantages / (variance.sqrt()[group] + advantage_eps)
    statistics = {
        "mean_reward": raw_rewards.mean().item(),
        "min_reward": raw_rewards.min().item(),
        "max_reward": raw_rewards.max().item(),
        "share_zero_advantage": (advantages == 0).float().mean().item(),
    }
    return advantages, statistics


def compute_policy_gradient_loss(
    raw_rewards_or_advantages: Tensor,
    policy_log_probs: Tensor,
    importance_reweighting_method: Reweighting = "none",
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
    response_mask: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss at every position, [B, T], and statistics, each [B, T]. A is [B] or [B, 1], log-probabilities [B, T].

    none    −A log π
    noclip  −r A with r = π / π_old; needs old_log_probs
    grpo    −min(r A, clamp(r, 1 ± cliprange) A); needs old_log_probs and cliprange
    gspo    the same with r = exp(mean over the response's tokens of log π − log π_old), one number a sequence, repeated
            at each of its positions; needs response_mask too
    """
    method = importance_reweighting_method
    given: dict[str, Any] = {"advantage": raw_rewards_or_advantages.reshape(-1, 1), "logprobs": policy_log_probs}
    everywhere = torch.ones_like(policy_log_probs, dtype=torch.bool)
    if method == "none":
        return padded(reinforce)(mask=everywhere, **given)
    if method not in ("noclip", "grpo", "gspo"):
        raise unknown_option("importance_reweighting_method", method, ("none", "noclip", "grpo", "gspo"))
    given["proximal_logprobs"] = require("old_log_probs", old_log_probs, method)
    if method == "noclip":
        return padded(ratio)(mask=everywhere, **given)
    given |= dict.fromkeys(("clip_low", "clip_high"), require("cliprange", cliprange, method))
    if method == "grpo":
        return padded(clip)(mask=everywhere, **given)
    mask = require("response_mask", response_mask, method).bool()
    loss, statistics = padded(gspo)(mask=mask, **given)
    first = mask.int().argmax(1, keepdim=True)  # a row without a response token has loss 0 everywhere
    return loss.gather(1, first).expand_as(loss), statistics


def aggregate_loss_across_microbatch(
    per_token_policy_gradient_loss: Tensor,
    mask: Tensor,
    loss_normalization: LossNormalization = "sequence",
    normalization_constant: float | None = None,
) -> Tensor:
    """The loss [B, T] as one number with gradients.

    sequence  the mean over the batch of the mean over each sequence's true entries; 0 for a sequence without any
    constant  the sum of all true entries over normalization_constant

    >>> loss, mask = torch.tensor([[2.0, 4.0, 9.0], [3.0, 9.0, 9.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    >>> aggregate_loss_across_microbatch(loss, mask).item()
    3.0
    >>> aggregate_loss_across_microbatch(loss, mask, "constant", 4).item()
    2.25
    """
    if loss_normalization == "sequence":
        return (masked_sum(per_token_policy_gradient_loss, mask, dim=1) / mask.bool().sum(1).clamp(min=1)).mean()
    if loss_normalization != "constant":
        raise unknown_option("loss_normalization", loss_normalization, ("sequence", "constant"))
    constant: float = require("normalization_constant", normalization_constant, "loss_normalization='constant'")
    return masked_sum(per_token_policy_gradient_loss, mask) / constant


def grpo_train_step(
    model: torch.nn.Module,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    gradient_accumulation_steps: int,
    max_grad_norm: float | None,
    reward_fn: Callable[[str, str], dict[str, float]],
    repeated_prompts: list[str],
    rollout_responses: list[str],
    repeated_ground_truths: list[str],
    group_size: int,
    baseline: Baseline = "mean",
    advantage_eps: float = 1e-6,
    advantage_normalizer: Normalizer = "std",
    importance_reweighting_method: Reweighting = "none",
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
    loss_normalization: LossNormalization = "sequence",
    normalization_constant: float | None = None,
) -> tuple[Tensor, dict[str, Tensor | float]]:
    """One optimiser step on responses that were sampled before: rewards, advantages, forward, backward, clip, step.

    The N responses are cut into gradient_accumulation_steps micro-batches of equal size; those of advantage 0 are left
    out of the forward pass and still counted. With `sequence` the step's loss is the mean of the micro-batches' losses,
    with `constant` their sum: the constant is the whole batch's (batch size times the limit on new tokens). If every
    advantage is 0 the optimiser steps without gradients, which changes nothing.

    old_log_probs  [N, T], T as `tokenize_prompt_and_output` pads all N together

    Afterwards every .grad is None. Returns the step's loss and statistics: those of rewards and advantages, grad_norm
    before clipping, token_entropy and the loss's statistics as means over the response tokens computed.
    """
    rewards, statistics = compute_rollout_rewards(reward_fn, rollout_responses, repeated_ground_truths)
    advantages, of_groups = compute_group_normalized_rewards(
        rewards, group_size, baseline, advantage_eps, advantage_normalizer
    )
    batch = tokenize_prompt_and_output(repeated_prompts, rollout_responses, tokenizer) | {"advantages": advantages}
    if importance_reweighting_method != "none":
        batch["old_log_probs"] = require("old_log_probs", old_log_probs, importance_reweighting_method)
    optimizer.zero_grad(set_to_none=True)
    device = next(model.parameters()).device
    total, num_tokens, sums = torch.zeros((), device=device), 0, dict[str, float]()
    for micro, share in _microbatches(batch, gradient_accumulation_steps):
        micro = {name: values.to(device) for name, values in micro.items()}
        mask = micro["response_mask"]
        scored = get_response_log_probs(model, micro["input_ids"], micro["labels"], return_token_entropy=True)
        per_token, of_loss = compute_policy_gradient_loss(
            micro["advantages"],
            scored["log_probs"],
            importance_reweighting_method,
            micro.get("old_log_probs"),
            cliprange,
            mask,
        )
        loss = aggregate_loss_across_microbatch(per_token, mask, loss_normalization, normalization_constant)
        if loss_normalization == "sequence":
            loss = loss * share
        loss.backward()
        total += loss.detach()
        num_tokens += int(mask.sum())
        for name, values in (of_loss | {"token_entropy": scored["token_entropy"].detach()}).items():
            sums[name] = sums.get(name, 0.0) + masked_sum(values, mask).item()
    bound = math.inf if max_grad_norm is None else max_grad_norm
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    means = {name: value / max(1, num_tokens) for name, value in sums.items()}
    return total, {**statistics, **of_groups, **means, "grad_norm": grad_norm.item()}


def _microbatches(batch: dict[str, Tensor], count: int) -> Iterator[tuple[dict[str, Tensor], float]]:
    """Blocks of equal size without their rows of advantage 0, each with the share of all rows that is left in it."""
    size = len(batch["advantages"])
    if count < 1 or size % count:
        raise InputError(
            where="gradient_accumulation_steps",
            given=f"{count} for {size} responses",
            expected="a divisor of the number of responses",
            fix="Choose another number of micro-batches.",
        )
    for rows in torch.arange(size).split(size // count):
        kept = rows[batch["advantages"][rows] != 0]
        if len(kept):
            yield {name: values[kept.to(values.device)] for name, values in batch.items()}, len(kept) / size


globals().update({f"run_{name}": globals()[name] for name in _NAMES})
