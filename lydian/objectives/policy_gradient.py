"""Policy-gradient losses. The advantage is a constant; only `logprobs` carries gradients.

Throughout r_t = π / π_proximal at a token, and sg[·] takes away gradients. Log-ratios are clamped to ±20 before `exp`,
log-probabilities are kept above −10⁴. PPO, GRPO, Dr. GRPO and DAPO all are `clip`; they differ in the advantage, in the
range and in the normaliser.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lydian.objectives.divergence import k3, ratio_of
from lydian.objectives.loss import Loss
from lydian.objectives.precision import constant, finite_logprobs
from lydian.objectives.segments import segment_mean


def reinforce(logprobs: Float[Tensor, " n"], advantage: Float[Tensor, " n"]) -> Loss:
    """REINFORCE, −A_t log π(y_t).

    logprobs   [n] log π of each sampled token under the current policy, in nats
    advantage  [n] A, constant

    Use: one update per batch of fresh samples. Trap: a second update on the same samples has the wrong gradient; take
    `ratio` or `clip`. Source: Williams (1992), "Simple statistical gradient-following algorithms", eq. 3.

    >>> reinforce(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, -0.5])).loss.tolist()
    [1.0, -1.0]
    """
    return Loss(-constant(advantage) * finite_logprobs(logprobs), {})


def ratio(
    logprobs: Float[Tensor, " n"], proximal_logprobs: Float[Tensor, " n"], advantage: Float[Tensor, " n"]
) -> Loss:
    """Importance-sampled surrogate without a clip, −r_t A_t.

    logprobs           [n] log π of each sampled token under the current policy, in nats
    proximal_logprobs  [n] the same under the proximal policy, constant
    advantage          [n] A, constant

    Statistics: ratio; kl_k1 and kl_k3, estimates of KL(proximal ‖ current) in nats a token. Use: for the exact
    gradient, and as what the others are measured against. Trap: unbounded variance once the policies part.
    Source: Kakade & Langford (2002); Schulman et al. (2015), TRPO, arXiv:1502.05477, eq. 14.

    >>> ratio(torch.tensor([0.6]).log(), torch.tensor([0.5]).log(), torch.tensor([2.0])).loss.tolist()
    [-2.4]
    """
    log_ratio, advantage = _log_ratio(logprobs, proximal_logprobs), constant(advantage)
    r = ratio_of(log_ratio)
    return Loss(-r * advantage, _distance(r, log_ratio))


def clip(
    logprobs: Float[Tensor, " n"],
    proximal_logprobs: Float[Tensor, " n"],
    advantage: Float[Tensor, " n"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Loss:
    """Clipped surrogate of PPO and GRPO, −min(r A, clamp(r, 1 − ε_low, 1 + ε_high) A) with r = π / π_proximal.

    logprobs           [n] log π of each sampled token under the current policy, in nats
    proximal_logprobs  [n] the same under the proximal policy: the clip's anchor, fixed during an update
    advantage          [n] A, constant
    clip_low           ε_low ≥ 0: how far the ratio may fall before a negative advantage stops pushing
    clip_high          ε_high ≥ 0: how far it may rise before a positive advantage stops pushing
    dual_clip          c > 1: where A < 0 the objective is max(min(…), c A), so a ratio above c stops pushing as well

    Statistics: ratio; clipped_low, clipped_high and clipped_dual, the share of tokens whose gradient the lower, upper
    or dual bound removed; kl_k1 and kl_k3, estimates of KL(proximal ‖ current) in nats a token.

    Raises ValueError for a dual_clip of 1 or less. Use: several updates on one batch; DAPO raises ε_high to 0.28 so
    that rare tokens can grow. Trap: on the first update every ratio is 1 and nothing is clipped: no fault. Without dual
    clip a ratio of any size keeps its gradient where A < 0.

    Source: Schulman et al. (2017), arXiv:1707.06347, eq. 7; asymmetric range: DAPO, arXiv:2503.14476, eq. 10; dual
    clip: Ye et al. (2020), arXiv:1912.09729.

    >>> proximal, current = torch.tensor([0.25, 0.30, 0.50]).log(), torch.tensor([0.40, 0.60, 0.30]).log()
    >>> (-clip(current, proximal, torch.tensor([0.5, -0.5, -0.5])).loss).tolist()
    [0.6000000238418579, -1.0, -0.4000000059604645]
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"clip: dual_clip is {dual_clip}; it bounds ratios from above and must exceed 1")
    log_ratio, advantage = _log_ratio(logprobs, proximal_logprobs), constant(advantage)
    r = ratio_of(log_ratio)
    loss = _clipped_loss(r, advantage, clip_low, clip_high)
    clipped_dual = torch.zeros_like(r, dtype=torch.bool)
    if dual_clip is not None:
        clipped_dual = (advantage < 0) & (r > dual_clip)
        loss = torch.where(clipped_dual, -dual_clip * advantage, loss)
    statistics = _distance(r, log_ratio) | _clipped_shares(r, advantage, 1 - clip_low, 1 + clip_high)
    return Loss(loss, statistics | {"clipped_dual": clipped_dual.float()})


def gspo(
    logprobs: Float[Tensor, " n"],
    proximal_logprobs: Float[Tensor, " n"],
    advantage: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Loss:
    """Clip of a whole sequence, −min(s A, clamp(s, 1 − ε_low, 1 + ε_high) A) with s = exp(mean_t log r_t).

    logprobs             [n] log π of each sampled token under the current policy, in nats
    proximal_logprobs    [n] the same under the proximal policy, constant
    advantage            [n] A, constant; one a sequence (the mean over its sites is taken)
    sequence             [n] index of the sequence that each token belongs to
    clip_low, clip_high  ε_low, ε_high ≥ 0 on s, the geometric mean of the ratios: hundreds of times narrower than PPO's

    The loss of a sequence is repeated at each of its sites. Statistics: ratio (s), clipped_low and clipped_high (share
    of sites in clipped sequences), kl_k1 and kl_k3 of KL(proximal ‖ current) in nats a token. Use: with the
    sequence_mean normaliser, and where ratios of single tokens are noise (mixtures of experts). Trap: another
    normaliser weighs sequences by length. Source: Zheng et al. (2025), arXiv:2507.18071, eqs. 5–7.

    >>> proximal, current = torch.tensor([-1.0, -1.0]), torch.tensor([-0.9, -0.7])
    >>> loss = gspo(current, proximal, torch.tensor([-1.0, -1.0]), torch.tensor([0, 0])).loss
    >>> [round(x, 4) for x in loss.tolist()]
    [1.2214, 1.2214]
    """
    log_ratio = _log_ratio(logprobs, proximal_logprobs)
    s, advantage = ratio_of(_sequence_mean(log_ratio, sequence)), _sequence_mean(constant(advantage), sequence)
    statistics = _distance(s, log_ratio) | _clipped_shares(s, advantage, 1 - clip_low, 1 + clip_high)
    return Loss(_clipped_loss(s, advantage, clip_low, clip_high), statistics)


def gspo_token(
    logprobs: Float[Tensor, " n"],
    proximal_logprobs: Float[Tensor, " n"],
    advantage: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Loss:
    """GSPO's clip with a gradient per token, −min(s_t A_t, clamp(s_t, 1 − ε_low, 1 + ε_high) A_t), s_t = sg[s] π/sg[π].

    logprobs             [n] log π of each sampled token under the current policy, in nats
    proximal_logprobs    [n] the same under the proximal policy, constant
    advantage            [n] A, constant; may differ between the tokens of a sequence
    sequence             [n] index of the sequence that each token belongs to
    clip_low, clip_high  ε_low, ε_high ≥ 0 on s = exp(mean_t log r_t), the value of every s_t of the sequence

    With one advantage a sequence, value and gradient of the sequence mean equal those of `gspo`. Statistics: as there.
    Use: advantages that differ within a sequence (turns, steps). Source: Zheng et al. (2025), arXiv:2507.18071,
    eqs. 13–14.

    >>> proximal, current = torch.tensor([-1.0, -1.0]), torch.tensor([-0.9, -0.7])
    >>> loss = gspo_token(current, proximal, torch.tensor([-1.0, -0.5]), torch.tensor([0, 0])).loss
    >>> [round(x, 4) for x in loss.tolist()]
    [1.2214, 0.6107]
    """
    log_ratio, advantage = _log_ratio(logprobs, proximal_logprobs), constant(advantage)
    s = ratio_of(_sequence_mean(log_ratio, sequence)).detach() * (log_ratio - log_ratio.detach()).exp()
    statistics = _distance(s, log_ratio) | _clipped_shares(s, advantage, 1 - clip_low, 1 + clip_high)
    return Loss(_clipped_loss(s, advantage, clip_low, clip_high), statistics)


def gmpo(
    logprobs: Float[Tensor, " n"],
    proximal_logprobs: Float[Tensor, " n"],
    advantage: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    *,
    log_clip_low: float = 0.4,
    log_clip_high: float = 0.4,
) -> Loss:
    """Geometric mean of clipped token ratios, −A exp(mean_t x̂_t), x̂ = sgn(A) min(sgn(A) x, sgn(A) clamp(x, −ε, ε)).

    logprobs           [n] log π of each sampled token under the current policy, in nats
    proximal_logprobs  [n] the same under the proximal policy, constant; x = log π − log π_proximal
    advantage          [n] A, constant; one a sequence (the mean over its sites is taken)
    sequence           [n] index of the sequence that each token belongs to
    log_clip_low       ε_low ≥ 0, in nats: bounds x from below where A < 0
    log_clip_high      ε_high ≥ 0, in nats: bounds x from above where A > 0

    The loss of a sequence is repeated at each of its sites. Statistics: ratio (the geometric mean after clipping),
    clipped_low and clipped_high (share of tokens whose gradient a bound removed), kl_k1 and kl_k3 of
    KL(proximal ‖ current) in nats a token. Use: with the sequence_mean normaliser; one outlying token cannot carry the
    sequence, yet only that token is clipped. Trap: the bounds are log-ratios: 0.4 is the range (0.67, 1.49).
    Source: Zhao et al. (2025), arXiv:2507.20673.

    >>> proximal, current = torch.tensor([-1.0, -1.0]), torch.tensor([-0.9, -0.2])
    >>> loss = gmpo(current, proximal, torch.tensor([1.0, 1.0]), torch.tensor([0, 0])).loss
    >>> [round(x, 4) for x in loss.tolist()]
    [-1.284, -1.284]
    """
    log_ratio, advantage = _log_ratio(logprobs, proximal_logprobs), _sequence_mean(constant(advantage), sequence)
    sign = advantage.sign()
    bounded = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-log_clip_low, log_clip_high))
    r = ratio_of(_sequence_mean(bounded, sequence))
    statistics = _distance(r, log_ratio) | _clipped_shares(log_ratio, advantage, -log_clip_low, log_clip_high)
    return Loss(-r * advantage, statistics)


def sapo(
    logprobs: Float[Tensor, " n"],
    proximal_logprobs: Float[Tensor, " n"],
    advantage: Float[Tensor, " n"],
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> Loss:
    """Soft gate in place of a clip, −A f(r) with f(r) = (4/τ) σ(τ (r − 1)).

    logprobs           [n] log π of each sampled token under the current policy, in nats
    proximal_logprobs  [n] the same under the proximal policy, constant
    advantage          [n] A, constant
    tau_pos            τ > 0 where A > 0: the larger, the narrower the gate
    tau_neg            τ > 0 elsewhere

    The gate's slope f′(r) = sech²(τ (r − 1)/2) is 1 at r = 1 for any τ, so there the gradient is REINFORCE's.
    Statistics: ratio; gate, f′(r), the share of the gradient let through; kl_k1 and kl_k3 of KL(proximal ‖ current) in
    nats a token. Use: with the sequence_mean normaliser. Trap: the value at r = 1 is −2A/τ, not −A; compare gradients,
    not losses. Source: Gao et al. (2025), arXiv:2511.20347.

    >>> loss, statistics = sapo(torch.tensor([1.5]).log(), torch.zeros(1), torch.ones(1), tau_pos=1.0)
    >>> round(loss.item(), 4), round(statistics["gate"].item(), 4)
    (-2.4898, 0.94)
    """
    log_ratio, advantage = _log_ratio(logprobs, proximal_logprobs), constant(advantage)
    r = ratio_of(log_ratio)
    tau = torch.where(advantage > 0, tau_pos, tau_neg).to(r.dtype)
    gate = torch.sigmoid(tau * (r - 1))
    slope = 4 * gate.detach() * (1 - gate.detach())
    return Loss(-advantage * gate * (4 / tau), _distance(r, log_ratio) | {"gate": slope})


def cispo(
    logprobs: Float[Tensor, " n"],
    proximal_logprobs: Float[Tensor, " n"],
    advantage: Float[Tensor, " n"],
    *,
    ratio_cap: float = 5.0,
    ratio_floor: float = 0.0,
) -> Loss:
    """REINFORCE weighted by a bounded ratio, −sg[clamp(r, floor, cap)] A log π: no token loses its gradient.

    logprobs           [n] log π of each sampled token under the current policy, in nats
    proximal_logprobs  [n] the same under the proximal policy, constant
    advantage          [n] A, constant
    ratio_cap          ≥ 1, the largest weight itself; not an offset from 1 as the paper's ε_high is
    ratio_floor        in [0, 1], the smallest weight itself; 0 means none, as in the paper

    Statistics: ratio; capped and floored, the share of tokens whose weight was bounded (they still train); kl_k1 and
    kl_k3 of KL(proximal ‖ current) in nats a token. Raises ValueError for a cap below 1 or a floor outside [0, 1]. Use:
    with the token_mean normaliser, where rare but decisive tokens must keep training. Trap: a cap of 0.2, taken for an
    ε, makes every gradient five times too small. Source: MiniMax (2025), "MiniMax-M1", arXiv:2506.13585, eqs. 4–5.

    >>> loss = cispo(torch.tensor([-0.5, -0.5]), torch.tensor([-0.5, -3.5]), torch.ones(2), ratio_cap=5.0).loss
    >>> loss.tolist()
    [0.5, 2.5]
    """
    if ratio_cap < 1 or not 0 <= ratio_floor <= 1:
        raise ValueError(f"cispo: bounds are {ratio_floor} and {ratio_cap}; they need 0 ≤ ratio_floor ≤ 1 ≤ ratio_cap")
    log_ratio, advantage = _log_ratio(logprobs, proximal_logprobs), constant(advantage)
    r = ratio_of(log_ratio.detach())
    shares = {"capped": (r > ratio_cap).float(), "floored": (r < ratio_floor).float()}
    loss = -r.clamp(ratio_floor, ratio_cap) * advantage * finite_logprobs(logprobs)
    return Loss(loss, _distance(r, log_ratio) | shares)


def _log_ratio(logprobs: Tensor, proximal_logprobs: Tensor) -> Tensor:
    return finite_logprobs(logprobs) - finite_logprobs(proximal_logprobs).detach()


def _clipped_loss(r: Tensor, advantage: Tensor, clip_low: float, clip_high: float) -> Tensor:
    return -torch.minimum(r * advantage, r.clamp(1 - clip_low, 1 + clip_high) * advantage)


def _sequence_mean(values: Tensor, sequence: Tensor) -> Tensor:
    """The mean over its sequence, at each site."""
    count = int(sequence.max()) + 1 if len(sequence) else 0
    return segment_mean(values, sequence, count)[sequence]


def _distance(r: Tensor, log_ratio: Tensor) -> dict[str, Tensor]:
    """What every loss with a ratio reports. The tokens are the proximal policy's: KL(proximal ‖ current)."""
    log_ratio = log_ratio.detach()
    return {"ratio": r.detach(), "kl_k1": -log_ratio, "kl_k3": k3(torch.zeros_like(log_ratio), log_ratio)}


def _clipped_shares(r: Tensor, advantage: Tensor, low: float, high: float) -> dict[str, Tensor]:
    """The sites whose gradient a bound removed: below it a negative advantage, above it a positive one."""
    return {
        "clipped_low": ((r < low) & (advantage < 0)).float(),
        "clipped_high": ((r > high) & (advantage > 0)).float(),
    }
