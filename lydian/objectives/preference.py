"""Losses on the margin between a chosen and a rejected reply, against a reference policy.

Throughout, Δ_w and Δ_l are Σ_t (log π − log π_reference) of the chosen and the rejected reply, and h = β (Δ_w − Δ_l).
The loss of a pair is repeated at each of its sites (see `Loss`): with `pair_mean` the step's loss is the mean over
pairs.
"""

from __future__ import annotations

import math
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from lydian.objectives.divergence import ratio_of
from lydian.objectives.loss import Loss
from lydian.objectives.precision import finite_logprobs
from lydian.objectives.preference_pairs import Pairs, log_ratios


def dpo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Direct preference optimisation, −log σ(h) with h = β (Δ_w − Δ_l).

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference

    Statistics: reward_chosen, reward_rejected (β Δ), margin (their difference), preference_accuracy (margin > 0), and
    chosen_logprobs, rejected_logprobs (Σ log π in nats). Use: the default on pairs of replies to one prompt; the step's
    first loss is log 2 exactly. Trap: the margin may grow while chosen_logprobs falls; `chosen_nll` in a `mixture`
    holds it up. Source: Rafailov et al. (2023), arXiv:2305.18290, eq. 7.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(dpo(current, reference, ids, pair, is_chosen, beta=0.1).loss[0].item(), 4)  # h = 0.1 (2 + 1)
    0.5544
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    return pairs.loss(-logsigmoid(pairs.margin(reward)), reward, logprobs)


def cdpo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.1,
) -> Loss:
    """Conservative DPO, −(1 − ε) log σ(h) − ε log σ(−h): labels are wrong with probability ε.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference
    label_smoothing     ε in [0, 0.5): the share of labels that are taken to be swapped

    Statistics: as `dpo`. Use: noisy labels; the loss is least at the finite margin log((1 − ε)/ε), so margins stop
    growing there. Trap: its minimum is not 0. Source: E. Mitchell (2023), "A note on DPO with noisy preferences".

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(cdpo(current, reference, ids, pair, is_chosen, beta=0.1, label_smoothing=0.1).loss[0].item(), 4)
    0.5844
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    h = pairs.margin(reward)
    return pairs.loss(-(1 - label_smoothing) * logsigmoid(h) - label_smoothing * logsigmoid(-h), reward, logprobs)


def robust_dpo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.1,
) -> Loss:
    """Robust DPO, (−(1 − ε) log σ(h) + ε log σ(−h)) / (1 − 2ε): unbiased for `dpo` on clean labels.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference
    label_smoothing     ε in [0, 0.5): the share of labels that were swapped at random

    Statistics: as `dpo`. Use: the share of wrong labels is known. Trap: the loss falls without bound as h grows (its
    slope tends to −ε/(1 − 2ε)), so it may be negative. Raises ValueError for ε outside [0, 0.5).
    Source: Chowdhury et al. (2024), arXiv:2403.00409.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(robust_dpo(current, reference, ids, pair, is_chosen, beta=0.1, label_smoothing=0.1).loss[0].item(), 4)
    0.5169
    """
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"robust_dpo: label_smoothing {label_smoothing}; it must lie in [0, 0.5)")
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    h = pairs.margin(reward)
    clean = (label_smoothing * logsigmoid(-h) - (1 - label_smoothing) * logsigmoid(h)) / (1 - 2 * label_smoothing)
    return pairs.loss(clean, reward, logprobs)


def ipo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Identity preference optimisation on sums, (Δ_w − Δ_l − 1/(2β))².

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0 (the paper's τ): the margin is drawn to 1/(2β) nats and no further

    Statistics: as `dpo`. Use: deterministic labels, where DPO's margins grow without bound. Trap: this is the paper's
    form; some libraries compute `ipo_mean` under this name, and their β is not this one.
    Source: Azar et al. (2023), arXiv:2310.12036, eq. 17.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> ipo(current, reference, ids, pair, is_chosen, beta=0.1).loss[0].item()  # (3 − 5)²
    4.0
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    log_ratio = pairs.sum(log_ratios(logprobs, reference_logprobs))
    return pairs.loss((pairs.margin(log_ratio) - 1 / (2 * beta)) ** 2, beta * log_ratio, logprobs)


def ipo_mean(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Identity preference optimisation on means over tokens, (Δ_w/|y_w| − Δ_l/|y_l| − 1/(2β))².

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the margin of the means is drawn to 1/(2β) nats a token

    Statistics: as `dpo`, with rewards β Δ/|y|. Use: replies of very different lengths. Trap: 1/(2β) is now per token:
    β = 0.1 asks for 5 nats a token, which is far; use a larger β than with `ipo`.
    Source: Azar et al. (2023), arXiv:2310.12036, eq. 17, on log-ratios averaged over tokens.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> ipo_mean(current, reference, ids, pair, is_chosen, beta=0.25).loss[0].item()  # (2 + 1 − 2)²
    1.0
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    log_ratio = pairs.mean(log_ratios(logprobs, reference_logprobs))
    return pairs.loss((pairs.margin(log_ratio) - 1 / (2 * beta)) ** 2, beta * log_ratio, logprobs)


def hinge(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Hinge loss on the margin (SLiC with a reference), max(0, 1 − h).

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: pairs whose log-ratios differ by more than 1/β are left alone

    Statistics: as `dpo`. Use: to stop pushing pairs that are already apart. Trap: their gradient is exactly zero.
    Source: Liu et al. (2023), "RSO", arXiv:2309.06657; without a reference: Zhao et al. (2023), arXiv:2305.10425.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(hinge(current, reference, ids, pair, is_chosen, beta=0.1).loss[0].item(), 4)  # 1 − 0.3
    0.7
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    return pairs.loss((1 - pairs.margin(reward)).clamp(min=0), reward, logprobs)


def exo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    label_smoothing: float = 1e-3,
) -> Loss:
    """Exact optimisation on pairs, the reverse KL((q, 1 − q) ‖ (1 − ε, ε)) with q = σ(h).

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference
    label_smoothing     ε in (0, 1): the probability that the label is wrong; 0 would make the KL infinite

    Statistics: as `dpo`. Use: mode-seeking where DPO, a forward KL, covers. Trap: on pairs that are far wrong
    (q near 0) the gradient vanishes. Raises ValueError for ε outside (0, 1).
    Source: Ji et al. (2024), arXiv:2402.00856, "EXO-pref".

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(exo(current, reference, ids, pair, is_chosen, beta=0.1, label_smoothing=0.1).loss[0].item(), 4)
    0.3584
    """
    if not 0 < label_smoothing < 1:
        raise ValueError(f"exo: label_smoothing {label_smoothing}; it must lie in (0, 1)")
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    h = pairs.margin(reward)
    right = h.sigmoid() * (logsigmoid(h) - math.log1p(-label_smoothing))
    wrong = (-h).sigmoid() * (logsigmoid(-h) - math.log(label_smoothing))
    return pairs.loss(right + wrong, reward, logprobs)


def discopop(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    temperature: float = 0.05,
) -> Loss:
    """A loss found by search, −(1 − s) log σ(h) + s e^(−h) with s = σ(h/τ): logistic below zero, exponential above.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference
    temperature         τ > 0: how sharp the change from one to the other is

    Statistics: as `dpo`. Use: as the paper did, with τ = 0.05. Trap: not convex; near h = 0 the loss rises with h.
    Source: Lu et al. (2024), arXiv:2406.08414 ("log-ratio modulated loss").

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(discopop(current, reference, ids, pair, is_chosen, beta=0.1).loss[0].item(), 4)  # s = σ(6) = 0.9975
    0.7404
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    h = pairs.margin(reward)
    share = (h / temperature).sigmoid()
    return pairs.loss(share * ratio_of(-h) - (1 - share) * logsigmoid(h), reward, logprobs)


def f_dpo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    f_divergence: Literal["reverse_kl", "forward_kl", "jensen_shannon", "alpha"] = "reverse_kl",
    alpha: float = 0.5,
) -> Loss:
    """DPO with another divergence to the reference, −log σ(β (g(Δ_w) − g(Δ_l))), with g(Δ) = f′(π/π_reference).

    reverse_kl: g = Δ, which is `dpo`; forward_kl: g = 1 − e^(−Δ); jensen_shannon: g = log 2 + log σ(Δ);
    alpha: g = (1 − e^(−αΔ))/α, between the reverse KL (α → 0) and the forward KL (α = 1). Constants make g(0) = 0.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference
    f_divergence        the divergence: reverse_kl, forward_kl, jensen_shannon or alpha
    alpha               α in (0, 1] of the alpha divergence; the others do not read it

    Statistics: as `dpo`, with rewards β g(Δ). Use: forward_kl and alpha keep more of the reference's diversity.
    Trap: Δ is a sum over tokens; e^(−Δ) of a long reply is extreme, and beyond ±20 nats it is held, without gradient.
    Raises ValueError for α outside (0, 1] or an unknown divergence. Source: Wang et al. (2023), arXiv:2309.16240.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> loss = f_dpo(current, reference, ids, pair, is_chosen, f_divergence="jensen_shannon").loss
    >>> round(loss[0].item(), 4)  # log σ(2) − log σ(−1) = 1.1863
    0.6356
    """
    if f_divergence == "alpha" and not 0 < alpha <= 1:
        raise ValueError(f"f_dpo: alpha {alpha}; it must lie in (0, 1]")
    pairs = Pairs.of(sequence, pair, is_chosen)
    log_ratio = pairs.sum(log_ratios(logprobs, reference_logprobs))
    if f_divergence == "reverse_kl":
        slope = log_ratio
    elif f_divergence == "forward_kl":
        slope = 1 - ratio_of(-log_ratio)
    elif f_divergence == "jensen_shannon":
        slope = math.log(2) + logsigmoid(log_ratio)
    elif f_divergence == "alpha":
        slope = (1 - ratio_of(-alpha * log_ratio)) / alpha
    else:
        raise ValueError(f"f_dpo: unknown f_divergence {f_divergence!r}")
    return pairs.loss(-logsigmoid(beta * pairs.margin(slope)), beta * slope, logprobs)


def wpo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    log_collision: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    max_weight: float = 1.0,
) -> Loss:
    """DPO weighted by how likely both replies are under the current policy, −w log σ(h).

    w = min(max_weight, exp(a_w + a_l)), constant, with a = mean_t (log π(y_t) − log Σ_v π(v)²) of each reply: a token
    as likely as a sample of the policy is on average has weight 1.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    log_collision       [n] log Σ_v π(v)² at each site: the expected probability of a sampled token, in nats
    beta                β > 0: the strength of the pull to the reference
    max_weight          upper bound of w, which greedy-looking replies would exceed

    Statistics: as `dpo`, and weight. Use: pairs that another model wrote; they count less, the less the policy would
    write them. Trap: no gradient flows through w, and the step's first loss is not log 2.
    Source: Zhou et al. (2024), arXiv:2406.11827.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> loss, statistics = wpo(current, reference, torch.tensor([-0.9, -2.7]), ids, pair, is_chosen)
    >>> round(statistics["weight"][0].item(), 4), round(loss[0].item(), 4)  # e^(−0.1 − 0.3), times 0.5544
    (0.6703, 0.3716)
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    alignment = pairs.mean(finite_logprobs(logprobs.detach()) - finite_logprobs(log_collision.detach()))
    weight = ratio_of(alignment[pairs.chosen] + alignment[pairs.rejected]).clamp(max=max_weight)
    loss, statistics = pairs.loss(-weight * logsigmoid(pairs.margin(reward)), reward, logprobs)
    return Loss(loss, {**statistics, "weight": weight[pairs.site_pair]})
