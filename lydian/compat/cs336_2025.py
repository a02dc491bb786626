"""The functions that Stanford CS336's assignment 5 of spring 2025 asks for, forwarding to Lydian.

In the course's `tests/adapters.py`, import the `run_` names from here. Names and signatures are the course's; the
meaning of each argument is in its docstring. The assignment of 2026 has two of these names with other signatures: see
`lydian.compat.cs336_2026`.

Departures, all where the course leaves a case open: a group of one response has advantage 0 (its sample standard
deviation does not exist), ratios are clamped to e^±20, and bf16 logits are read in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from lydian.compat._cs336 import (
    compute_entropy,
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
from lydian.objectives.advantage import group_mean, group_mean_std
from lydian.objectives.likelihood import nll
from lydian.objectives.policy_gradient import clip, ratio, reinforce

LossType = Literal["no_baseline", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip"]
"""The course's three, and its ablation without clipping."""

_LOSS_TYPES = ("no_baseline", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip")
_NAMES = (
    "tokenize_prompt_and_output",
    "compute_entropy",
    "get_response_log_probs",
    "sft_microbatch_train_step",
    "compute_group_normalized_rewards",
    "compute_naive_policy_gradient_loss",
    "compute_grpo_clip_loss",
    "compute_policy_gradient_loss",
    "masked_mean",
    "grpo_microbatch_train_step",
    "iterate_batches",
    "parse_mmlu_response",
    "parse_gsm8k_response",
    "compute_per_instance_dpo_loss",
)

__all__ = [
    "tokenize_prompt_and_output",
    "compute_entropy",
    "get_response_log_probs",
    "masked_normalize",
    "masked_mean",
    "sft_microbatch_train_step",
    "compute_group_normalized_rewards",
    "compute_naive_policy_gradient_loss",
    "compute_grpo_clip_loss",
    "compute_policy_gradient_loss",
    "grpo_microbatch_train_step",
    "get_packed_sft_dataset",
    "iterate_batches",
    "parse_mmlu_response",
    "parse_gsm8k_response",
    "compute_per_instance_dpo_loss",
    "r1_zero_reward_fn",
    "question_only_reward_fn",
]


def masked_normalize(tensor: Tensor, mask: Tensor, normalize_constant: float, dim: int | None = None) -> Tensor:
    """Sum of the entries where the mask is true, over `dim` or all, divided by normalize_constant.

    >>> masked_normalize(torch.tensor([[1.0, 2.0], [4.0, 8.0]]), torch.tensor([[1, 1], [1, 0]]), 2.0, dim=1).tolist()
    [1.5, 2.0]
    """
    return masked_sum(tensor, mask, dim) / normalize_constant


def run_masked_normalize(
    tensor: Tensor, mask: Tensor, dim: int | None = None, normalize_constant: float = 1.0
) -> Tensor:
    """`masked_normalize` with the adapter's order of arguments, which is not the handout's."""
    return masked_normalize(tensor, mask, normalize_constant, dim)


def masked_mean(tensor: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of the entries where the mask is true, over `dim` or all; NaN where there are none.

    >>> masked_mean(torch.tensor([[1.0, 2.0], [4.0, 8.0]]), torch.tensor([[1, 1], [0, 0]]), dim=1).tolist()
    [1.5, nan]
    """
    return masked_sum(tensor, mask, dim) / mask.bool().sum(dim)


def sft_microbatch_train_step(
    policy_log_probs: Tensor, response_mask: Tensor, gradient_accumulation_steps: int, normalize_constant: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """One micro-batch of supervised training: calls backward and returns the scaled loss.

    loss = mean over the batch of Σ_t −log π(y_t) / normalize_constant, over gradient_accumulation_steps. Gradients add
    up in .grad; each response token gets −1 / (B · gradient_accumulation_steps · normalize_constant).
    """
    per_token = padded(nll)(mask=response_mask, logprobs=policy_log_probs).loss
    loss = masked_normalize(per_token, response_mask, normalize_constant, dim=-1).mean() / gradient_accumulation_steps
    loss.backward()
    return loss.detach(), {"mean_nll": masked_mean(per_token.detach(), response_mask)}


def compute_group_normalized_rewards(
    reward_fn: Callable[[str, str], dict[str, float]],
    rollout_responses: list[str],
    repeated_ground_truths: list[str],
    group_size: int,
    advantage_eps: float,
    normalize_by_std: bool,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Rewards, and advantages within consecutive blocks of group_size: r − mean, or (r − mean) / (std + eps).

    The standard deviation is the sample's (divided by G − 1). Returns advantages [N], raw rewards [N], statistics.
    """
    rewards = score(reward_fn, rollout_responses, repeated_ground_truths)
    raw = rewards["reward"]
    group = group_index(len(raw), group_size)
    if normalize_by_std:
        advantages = group_mean_std(raw, group, ddof=1, epsilon=advantage_eps)
    else:
        advantages = group_mean(raw, group)
    statistics = {f"mean_{name}": values.mean().item() for name, values in rewards.items()}
    return advantages, raw, statistics | {"min_reward": raw.min().item(), "max_reward": raw.max().item()}


def compute_naive_policy_gradient_loss(raw_rewards_or_advantages: Tensor, policy_log_probs: Tensor) -> Tensor:
    """−A log π at every position: A [B, 1], log π [B, T], loss [B, T]."""
    everywhere = torch.ones_like(policy_log_probs, dtype=torch.bool)
    return padded(reinforce)(mask=everywhere, logprobs=policy_log_probs, advantage=raw_rewards_or_advantages).loss


def compute_grpo_clip_loss(
    advantages: Tensor, policy_log_probs: Tensor, old_log_probs: Tensor, cliprange: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """−min(r A, clamp(r, 1 ± cliprange) A) at every position, r = π / π_old: A [B, 1], log-probabilities [B, T].

    Returns the loss [B, T] and the statistics of `lydian.objectives.policy_gradient.clip`, each [B, T].
    """
    return padded(clip)(
        mask=torch.ones_like(policy_log_probs, dtype=torch.bool),
        logprobs=policy_log_probs,
        proximal_logprobs=old_log_probs,
        advantage=advantages,
        clip_low=cliprange,
        clip_high=cliprange,
    )


def compute_policy_gradient_loss(
    policy_log_probs: Tensor,
    loss_type: LossType,
    raw_rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a type, [B, T], and its statistics.

    no_baseline              −r log π; needs raw_rewards [B, 1]
    reinforce_with_baseline  −A log π; needs advantages [B, 1]
    grpo_clip                see `compute_grpo_clip_loss`; needs advantages, old_log_probs [B, T] and cliprange
    grpo_no_clip             −(π / π_old) A; needs advantages and old_log_probs
    """
    if loss_type not in _LOSS_TYPES:
        raise unknown_option("loss_type", loss_type, _LOSS_TYPES)
    if loss_type == "no_baseline":
        return compute_naive_policy_gradient_loss(require("raw_rewards", raw_rewards, loss_type), policy_log_probs), {}
    advantages = require("advantages", advantages, loss_type)
    if loss_type == "reinforce_with_baseline":
        return compute_naive_policy_gradient_loss(advantages, policy_log_probs), {}
    old_log_probs = require("old_log_probs", old_log_probs, loss_type)
    if loss_type == "grpo_clip":
        cliprange = require("cliprange", cliprange, loss_type)
        return compute_grpo_clip_loss(advantages, policy_log_probs, old_log_probs, cliprange)
    return padded(ratio)(
        mask=torch.ones_like(policy_log_probs, dtype=torch.bool),
        logprobs=policy_log_probs,
        proximal_logprobs=old_log_probs,
        advantage=advantages,
    )


def grpo_microbatch_train_step(
    policy_log_probs: Tensor,
    response_mask: Tensor,
    gradient_accumulation_steps: int,
    loss_type: LossType,
    raw_rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    cliprange: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One micro-batch of policy gradient: calls backward and returns the scaled loss.

    loss = mean over the batch of the mean over each response's tokens, over gradient_accumulation_steps; NaN if a
    response has no token. Statistics are means over the response tokens.
    """
    per_token, statistics = compute_policy_gradient_loss(
        policy_log_probs, loss_type, raw_rewards, advantages, old_log_probs, cliprange
    )
    loss = masked_mean(per_token, response_mask, dim=-1).mean() / gradient_accumulation_steps
    loss.backward()
    return loss.detach(), {name: masked_mean(values, response_mask) for name, values in statistics.items()}


globals().update({f"run_{name}": globals()[name] for name in _NAMES})
