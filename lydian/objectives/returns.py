"""Rewards, returns and advantages of tokens. Constants: nothing here carries gradients.

Sites may be interleaved between sequences; those of one sequence stand in token order. The recursions run from the last
place to the first, all sequences at once, and touch each site once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lydian.objectives.precision import constant
from lydian.objectives.segments import place_in_segment, segment_size


def token_rewards(
    score: Float[Tensor, " s"], kl: Float[Tensor, " n"], sequence: Int[Tensor, " n"], *, kl_coef: float = 0.05
) -> Float[Tensor, " n"]:
    """Rewards of tokens with the KL folded in, r_t = −β k_t + 1[t is the last token] · score.

    score     [s] the verdict's reward of each sequence
    kl        [n] k_t = log π_behaviour − log π_reference at each token (k1), in nats; constant
    sequence  [n] index of the sequence that each token belongs to
    kl_coef   β ≥ 0, reward per nat

    Over a sequence they sum to score − β Σ_t k_t. Use: KL as reward, for PPO through `gae`; for methods with one
    advantage a sequence, sum them first. Trap: the mean of k_t in place of the sum makes long answers cheap; k3 here
    has the wrong gradient. Source: Ziegler et al. (2019), arXiv:1909.08593, eq. 2; Ouyang et al. (2022),
    arXiv:2203.02155.

    >>> ids = torch.tensor([0, 0])
    >>> token_rewards(torch.tensor([1.0]), torch.tensor([0.2, 0.4]), ids, kl_coef=0.05).tolist()
    [-0.01, 0.98]
    """
    is_last = place_in_segment(sequence) == segment_size(sequence, len(score))[sequence] - 1
    score = constant(score)
    return torch.where(is_last, score[sequence], torch.zeros_like(score[sequence])) - kl_coef * constant(kl)


def discounted_returns(
    reward: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    is_truncated: Float[Tensor, " s"],
    bootstrap_value: Float[Tensor, " s"],
    *,
    discount: float = 1.0,
) -> Float[Tensor, " n"]:
    """Discounted returns, R_t = r_t + γ R_{t+1}; after the last token R is 0, or V of where a truncated one stopped.

    reward           [n] r_t, reward on each token
    sequence         [n] index of the sequence that each token belongs to
    is_truncated     [s] 1 if the sequence was cut off by a limit, 0 if it ended by itself
    bootstrap_value  [s] V after the last token; read only where is_truncated is 1
    discount         γ in [0, 1], per token

    Trap: a bootstrap after a true end credits reward that can never come. Source: Sutton & Barto (2018), eq. 3.9.

    >>> ids, none = torch.tensor([0, 0, 0]), torch.zeros(1)
    >>> discounted_returns(torch.tensor([0.0, 0.0, 1.0]), ids, none, none, discount=0.5).tolist()
    [0.25, 0.5, 1.0]
    """
    reward = constant(reward)
    following = _after_the_end(is_truncated, bootstrap_value).to(reward.dtype)
    returns = torch.empty_like(reward)
    for sites in _last_to_first(sequence):
        owner = sequence[sites]
        returns[sites] = following[owner] = reward[sites] + discount * following[owner]
    return returns


def gae(
    reward: Float[Tensor, " n"],
    value: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    is_truncated: Float[Tensor, " s"],
    bootstrap_value: Float[Tensor, " s"],
    *,
    discount: float = 1.0,
    gae_lambda: float = 0.95,
) -> Float[Tensor, " n"]:
    """Generalised advantage estimation, A_t = δ_t + γλ A_{t+1} with δ_t = r_t + γ V_{t+1} − V_t.

    reward           [n] r_t, reward on each token
    value            [n] V_t, value before each token; constant
    sequence         [n] index of the sequence that each token belongs to
    is_truncated     [s] 1 if the sequence was cut off by a limit, 0 if it ended by itself
    bootstrap_value  [s] V after the last token; read only where is_truncated is 1. After a true end V is 0
    discount         γ in [0, 1], per token
    gae_lambda       λ in [0, 1]: 0 gives the TD residuals δ (little noise, biased by V), 1 the returns minus values

    The critic's targets are A + V. Source: Schulman et al. (2016), arXiv:1506.02438, eq. 16. Use: with a critic; whiten
    over the whole step, not over a micro-batch. Trap: a truncated answer without bootstrap counts as a failure there.

    >>> ids, none = torch.tensor([0, 0, 0]), torch.zeros(1)
    >>> reward, value = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.5, 0.6, 0.7])
    >>> [round(a, 5) for a in gae(reward, value, ids, none, none, discount=1.0, gae_lambda=0.95).tolist()]
    [0.46575, 0.385, 0.3]
    """
    value = constant(value)
    reward = constant(reward).to(torch.promote_types(reward.dtype, value.dtype))
    next_value = _after_the_end(is_truncated, bootstrap_value).to(reward.dtype)
    following = torch.zeros_like(next_value)
    advantage = torch.empty_like(reward)
    for sites in _last_to_first(sequence):
        owner = sequence[sites]
        residual = reward[sites] + discount * next_value[owner] - value[sites]
        advantage[sites] = following[owner] = residual + discount * gae_lambda * following[owner]
        next_value[owner] = value[sites].to(reward.dtype)
    return advantage


def _after_the_end(is_truncated: Tensor, bootstrap_value: Tensor) -> Tensor:
    bootstrap_value = constant(bootstrap_value)
    return torch.where(is_truncated > 0, bootstrap_value, torch.zeros_like(bootstrap_value))


def _last_to_first(sequence: Tensor) -> Sequence[Tensor]:
    """The sites at each place, one of every sequence that is as long, from the last place to the first."""
    if sequence.numel() == 0:
        return ()
    place = place_in_segment(sequence)
    sites = torch.argsort(place, descending=True)
    return sites.split(torch.bincount(place).flip(0).tolist())
