"""Weights that make samples of the behaviour policy stand for the proximal one, and the statistics of that gap.

Three policies: behaviour μ drew the tokens in its own engine, perhaps with older weights; proximal p is the trainer's
policy at the start of the update, the anchor of the clip; current π is being trained. Decoupled: the loss is
w · clip(π/p) with w = p/μ from here, a constant. Bypass: p is set equal to μ, the clip's ratio π/μ carries the whole
correction and every weight here is exactly 1, so nothing is counted twice; measure the gap with `correction_statistics`
on μ and π, and do not apply weights between those two. Using p in the ratio and never touching μ ignores the gap.

Log-ratios are clamped to ±20 after they are summed or averaged, right before `exp`.
Sources: Hilton et al. (2021), arXiv:2110.00641; Fu et al. (2025), "AReaL", arXiv:2505.24298.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lydian.objectives.divergence import LOG_RATIO_LIMIT, k3, ratio_of
from lydian.objectives.precision import constant, finite_logprobs
from lydian.objectives.segments import segment_mean, segment_sum

Level = Literal["token", "sequence", "geometric"]
"""What has one weight: a token; a sequence, by the product of its ratios; a sequence, by their geometric mean."""

Mode = Literal["truncate", "band", "reject"]
"""truncate: min(w, high). band: w inside [low, high], 0 outside. reject: 1 inside, 0 outside."""


def importance_weights(
    behaviour_logprobs: Float[Tensor, " n"],
    proximal_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    *,
    level: Level = "token",
    mode: Mode = "truncate",
    low: float | None = None,
    high: float = 2.0,
) -> Float[Tensor, " n"]:
    """Weights from the behaviour to the proximal policy, w = p / μ, bounded. Constants.

    behaviour_logprobs  [n] log μ of each token under the policy that sampled it, in nats
    proximal_logprobs   [n] log p under the proximal policy
    sequence            [n] index of the sequence that each token belongs to
    level               token: w_t = p_t/μ_t; sequence: Π_t w_t; geometric: (Π_t w_t)^(1/length); the last two are the
                        same at all sites of a sequence
    mode                truncate: min(w, high); band: w where low ≤ w ≤ high, else 0; reject: 1 where low ≤ w ≤ high,
                        else 0
    low                 lower bound of band and reject on p/μ (not on μ/p); none by default
    high                upper bound on p/μ

    Multiply two calls to reject whole sequences by geometric mean and weight their tokens. Raises ValueError for `low`
    with truncate, which has no lower bound, and for bounds out of order. Use: token and truncate by default; geometric
    to reject long sequences. Trap: the product over 4,096 tokens each off by 0.0005 is 7.75, so a bound on it drops all
    long answers. Truncated weights are biased, bounded in variance; weights are not renormalised.
    Source: Ionides (2008), "Truncated importance sampling"; band: Ling Team (2025), arXiv:2510.18855 (IcePop).

    >>> behaviour, proximal = torch.tensor([-1.1, -1.0, -2.0]), torch.tensor([-1.0, -2.0, -0.5])
    >>> weights = importance_weights(behaviour, proximal, torch.tensor([0, 0, 0]), high=2.0)
    >>> [round(w, 4) for w in weights.tolist()]
    [1.1052, 0.3679, 2.0]
    """
    if mode == "truncate" and low is not None:
        raise ValueError(f"importance_weights: mode truncate has no lower bound, yet low is {low}; use band or reject")
    if not 0 <= (low or 0.0) < high:
        raise ValueError(f"importance_weights: bounds are low = {low}, high = {high}; they need 0 ≤ low < high")
    raw = ratio_of(_log_weight(behaviour_logprobs, proximal_logprobs, sequence, level))
    if mode == "truncate":
        return raw.clamp(max=high)
    is_inside = (raw >= (low or 0.0)) & (raw <= high)
    return torch.where(is_inside, raw if mode == "band" else torch.ones_like(raw), torch.zeros_like(raw))


def mean_weight(
    weights: Float[Tensor, " n"], sequence: Int[Tensor, " n"], *, level: Level = "token"
) -> Float[Tensor, ""]:
    """The mean weight of the units: of tokens, or of sequences by the mean of their tokens' weights.

    weights, sequence, level  as in `batch_normalised`

    >>> mean_weight(torch.tensor([1.0, 1.0, 4.0]), torch.tensor([0, 0, 1]), level="sequence").item()
    2.5
    """
    return _by_unit(constant(weights), sequence, level).mean()


def batch_normalised(
    weights: Float[Tensor, " n"], sequence: Int[Tensor, " n"], *, level: Level = "token"
) -> Float[Tensor, " n"]:
    """Weights divided by their mean over the whole step, w_i / mean w, so that a gap does not change the step's size.

    weights   [n] of all sites of the step, after truncation and rejection; zeros count in the mean
    sequence  [n] index of the sequence that each token belongs to
    level     token: mean over tokens; sequence and geometric: mean over sequences of their mean weight

    All zero stays all zero. Call it on the whole step, before micro-batches are cut. Source: self-normalised importance
    sampling, e.g. Owen (2013), "Monte Carlo theory, methods and examples", section 9.2.

    >>> batch_normalised(torch.tensor([1.0, 3.0]), torch.tensor([0, 1])).tolist()
    [0.5, 1.5]
    """
    weights, mean = constant(weights), mean_weight(weights, sequence, level=level)
    return torch.where(mean > 0, weights / mean, torch.zeros_like(weights))


def correction_statistics(
    behaviour_logprobs: Float[Tensor, " n"],
    proximal_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    weights: Float[Tensor, " n"],
    *,
    level: Level = "token",
    low: float | None = None,
    high: float = 2.0,
) -> dict[str, float]:
    """How far behaviour and proximal policy are apart, and what the applied weights made of it, over a whole step.

    behaviour_logprobs  [n] log μ of each token under the policy that sampled it, in nats
    proximal_logprobs   [n] log p under the proximal policy (in bypass: the current one)
    sequence            [n] index of the sequence that each token belongs to
    weights             [n] the weights as applied: bounded, multiplied, normalised; ones in bypass
    level               what a unit is: a token, or a sequence (by product or by geometric mean)
    low, high           the bounds that share_below and share_above count against

    Raw weights w = p/μ, clamped and nothing else, every unit counted once:
    weight_mean, weight_std (population), weight_min, weight_max; share_below, share_above, of units; ess, effective
    sample size (Σw)² / (n Σw²) as a share of the n units; clamped, share of units with |log w| > 20.
    Applied weights, rejected ones included as 0: applied_mean, applied_max, applied_ess over the same units;
    rejected_tokens, share of tokens with weight 0; rejected_sequences, share of sequences all of whose tokens have it.
    Between the policies, over tokens unless named: kl_k1_behaviour_proximal and kl_k3_behaviour_proximal, of KL(μ ‖ p)
    in nats a token; chi2_proximal_behaviour, E_μ[(p/μ)²] − 1 of tokens, and chi2_sequence_proximal_behaviour of whole
    sequences; support_lost, 1 − E_μ[p/μ] of tokens, the share of p's probability where μ cannot sample (top-p, top-k,
    min-p); around 0, of either sign, where μ covers everything.

    Raises ValueError without sites. Trap: statistics of bounded weights hide the gap; these do not.
    Source: Kish (1965), effective sample size; Owen (2013), section 9.3.

    >>> behaviour, proximal = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.75, 0.25]).log()
    >>> found = correction_statistics(behaviour, proximal, torch.tensor([0, 1]), torch.ones(2))
    >>> round(found["weight_mean"], 4), round(found["ess"], 4), round(found["chi2_proximal_behaviour"], 4)
    (1.0, 0.8, 0.25)
    """
    if not len(sequence):
        raise ValueError("correction_statistics: there are no sites; it needs at least one")
    behaviour, proximal = behaviour_logprobs.detach().double(), proximal_logprobs.detach().double()
    log_weight = _log_weight(behaviour, proximal, sequence, level)
    raw = _by_unit(ratio_of(log_weight), sequence, level)
    applied = _by_unit(weights.detach().double(), sequence, level)
    tokens = ratio_of(_log_weight(behaviour, proximal, sequence, "token"))
    products = _by_unit(ratio_of(_log_weight(behaviour, proximal, sequence, "sequence")), sequence, "sequence")
    is_used = (weights != 0).double()
    found = {
        "weight_mean": raw.mean(),
        "weight_std": raw.std(correction=0),
        "weight_min": raw.min(),
        "weight_max": raw.max(),
        "share_below": (raw < (low or 0.0)).double().mean(),
        "share_above": (raw > high).double().mean(),
        "ess": _effective_share(raw),
        "clamped": _by_unit((log_weight.abs() > LOG_RATIO_LIMIT).double(), sequence, level).mean(),
        "applied_mean": applied.mean(),
        "applied_max": applied.max(),
        "applied_ess": _effective_share(applied),
        "rejected_tokens": 1 - is_used.mean(),
        "rejected_sequences": (_by_unit(is_used, sequence, "sequence") == 0).double().mean(),
        "kl_k1_behaviour_proximal": -_log_weight(behaviour, proximal, sequence, "token").mean(),
        "kl_k3_behaviour_proximal": k3(behaviour, proximal).mean(),
        "chi2_proximal_behaviour": (tokens**2).mean() - 1,
        "chi2_sequence_proximal_behaviour": (products**2).mean() - 1,
        "support_lost": 1 - tokens.mean(),
    }
    return {name: statistic.item() for name, statistic in found.items()}


def _log_weight(behaviour_logprobs: Tensor, proximal_logprobs: Tensor, sequence: Tensor, level: Level) -> Tensor:
    """log w of the level, at each site."""
    log_ratio = (finite_logprobs(proximal_logprobs) - finite_logprobs(behaviour_logprobs)).detach()
    if level == "token" or not len(sequence):
        return log_ratio
    reduce = segment_sum if level == "sequence" else segment_mean
    return reduce(log_ratio, sequence, int(sequence.max()) + 1)[sequence]


def _by_unit(values: Tensor, sequence: Tensor, level: Level) -> Tensor:
    """One value a unit: that of each token, or the mean of each sequence that has sites."""
    if level == "token":
        return values
    present, dense = torch.unique(sequence, return_inverse=True)
    return segment_mean(values, dense, len(present))


def _effective_share(weights: Tensor) -> Tensor:
    squares = (weights**2).sum()
    return torch.where(squares > 0, weights.sum() ** 2 / (len(weights) * squares), torch.zeros_like(squares))
