"""Losses on single replies that are known to be desirable or not, and the numbers of a whole step that they need.

Δ is Σ_t (log π − log π_reference) of a reply. The loss of a reply is repeated at each of its sites: with
`sequence_mean` the step's loss is the mean over replies.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from lydian.objectives.loss import Loss
from lydian.objectives.precision import constant, finite_logprobs
from lydian.objectives.preference_pairs import log_ratios
from lydian.objectives.segments import segment_sum


def kto(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    is_desirable: Float[Tensor, " s"],
    kl_estimate: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Loss:
    """Kahneman–Tversky optimisation, λ_D (1 − σ(β (Δ − z))) of a desirable, λ_U (1 − σ(β (z − Δ))) of another reply.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    is_desirable        [s] 1 for a desirable reply, 0 for an undesirable one
    kl_estimate         [s] z ≥ 0 in nats, one number for the whole step (`kto_kl`), constant
    beta                β > 0: the strength of the pull to the reference
    desirable_weight    λ_D ≥ 0
    undesirable_weight  λ_U ≥ 0; choose λ_D n_D / (λ_U n_U) between 1 and 4/3 for n_D desirable, n_U other replies

    Statistics: reward (β Δ), signed_reward (its sign turned for undesirable replies), preference_accuracy (Δ on the
    right side of z), sequence_logprobs (Σ log π in nats). Use: thumbs up or down without pairs. Trap: z must come from
    mismatched replies of the whole step, not of a micro-batch. z = 0 gives the unpaired APO-zero.
    Source: Ethayarajh et al. (2024), arXiv:2402.01306, eq. 8.

    >>> desirable, z = torch.tensor([1.0]), torch.tensor([0.5])
    >>> loss = kto(torch.tensor([-1.0]), torch.tensor([-3.0]), torch.tensor([0]), desirable, z, beta=0.1).loss
    >>> round(loss.item(), 5)  # 1 − σ(0.1 (2 − 0.5))
    0.46257
    """
    log_ratio = segment_sum(log_ratios(logprobs, reference_logprobs), sequence, len(is_desirable))
    sign = 2 * is_desirable - 1
    weight = torch.where(is_desirable > 0.5, desirable_weight, undesirable_weight)
    advance = sign * beta * (log_ratio - kl_estimate.detach())
    return _at_sites(weight * (-advance).sigmoid(), beta * log_ratio, sign, advance > 0, logprobs, sequence)


def bco(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    is_desirable: Float[Tensor, " s"],
    reward_shift: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Binary classifier optimisation, −log σ(β Δ − δ) of a desirable, −log σ(δ − β Δ) of an undesirable reply.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    is_desirable        [s] 1 for a desirable reply, 0 for an undesirable one
    reward_shift        [s] δ in units of reward, one number for the whole step (`bco_shift`), constant
    beta                β > 0: the strength of the pull to the reference

    Statistics: as `kto`, with accuracy against δ. Use: thumbs up or down without pairs. Trap: average δ over steps, a
    single step's is noisy; δ = 0 leaves both sides anchored at the reference.
    Source: Jung et al. (2024), arXiv:2404.04656.

    >>> desirable, shift = torch.tensor([1.0]), torch.tensor([0.05])
    >>> loss = bco(torch.tensor([-1.0]), torch.tensor([-3.0]), torch.tensor([0]), desirable, shift, beta=0.1).loss
    >>> round(loss.item(), 4)  # −log σ(0.2 − 0.05)
    0.6209
    """
    reward = beta * segment_sum(log_ratios(logprobs, reference_logprobs), sequence, len(is_desirable))
    sign = 2 * is_desirable - 1
    advance = sign * (reward - reward_shift.detach())
    return _at_sites(-logsigmoid(advance), reward, sign, advance > 0, logprobs, sequence)


def kto_kl(mismatched_log_ratio: Float[Tensor, " m"]) -> Float[Tensor, ""]:
    """The reference point of KTO, z = max(0, mean_j Δ(x_j, y_k)) over replies to other prompts, k ≠ j. Constant.

    mismatched_log_ratio  [m] Σ_t (log π − log π_reference) in nats of each mismatched reply of the whole step

    Use: the replies that `mismatched_replies` names, over all micro-batches and ranks of a step. Trap: the mean before
    the maximum; a maximum per micro-batch is too large. Raises ValueError for fewer than two: a batch of one has no
    other reply. Source: Ethayarajh et al. (2024), arXiv:2402.01306.

    >>> round(kto_kl(torch.tensor([0.8, -0.2, 0.9])).item(), 4), kto_kl(torch.tensor([-1.0, 0.5])).item()
    (0.5, 0.0)
    """
    if len(mismatched_log_ratio) < 2:
        raise ValueError("kto_kl: fewer than two replies; a batch of one has no reply to another prompt")
    return constant(mismatched_log_ratio).mean().clamp(min=0)


def mismatched_replies(prompt: Int[Tensor, " s"]) -> Int[Tensor, " s"]:
    """For each reply the index of one to another prompt, each reply used once: what `kto_kl` is measured on.

    prompt  [s] number of the prompt of each reply of the whole step

    Raises ValueError if more than half of the replies share a prompt (as in a batch of one): there is no such order.

    >>> mismatched_replies(torch.tensor([0, 0, 1, 2])).tolist()
    [2, 3, 0, 1]
    """
    order = torch.argsort(prompt, stable=True)
    largest = int(torch.unique(prompt, return_counts=True)[1].max()) if len(prompt) else 0
    if 2 * largest > len(prompt):
        raise ValueError(
            f"mismatched_replies: {largest} of {len(prompt)} replies answer one prompt; at most half may, so that each "
            "prompt can be matched with a reply to another"
        )
    return torch.empty_like(order).scatter_(0, order, order.roll(-largest))


def bco_shift(reward: Float[Tensor, " s"], is_desirable: Float[Tensor, " s"]) -> Float[Tensor, ""]:
    """The reward shift of BCO, δ = ½ (mean reward of desirable + mean reward of undesirable replies). Constant.

    reward        [s] β Δ of each reply of the whole step
    is_desirable  [s] 1 for a desirable reply, 0 for an undesirable one

    Raises ValueError if one class is absent: its mean is not zero, it does not exist; keep the last step's shift.
    Source: Jung et al. (2024), arXiv:2404.04656.

    >>> bco_shift(torch.tensor([0.5, 0.25, -1.0]), torch.tensor([1.0, 1.0, 0.0])).item()
    -0.3125
    """
    desirable = is_desirable > 0.5
    if not desirable.any() or desirable.all():
        raise ValueError("bco_shift: all replies are of one class; the shift needs desirable and undesirable ones")
    reward = reward.detach()
    return (reward[desirable].mean() + reward[~desirable].mean()) / 2


def _at_sites(loss: Tensor, reward: Tensor, sign: Tensor, is_right: Tensor, logprobs: Tensor, sequence: Tensor) -> Loss:
    statistics = {
        "reward": reward.detach(),
        "signed_reward": (sign * reward).detach(),
        "preference_accuracy": is_right.float(),
        "sequence_logprobs": segment_sum(finite_logprobs(logprobs.detach()), sequence, len(sign)),
    }
    return Loss(loss[sequence], {name: values[sequence] for name, values in statistics.items()})
