"""Losses on pairs that keep a reply's length from standing in for its quality. Symbols as in `preference`."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from lydian.objectives.loss import Loss
from lydian.objectives.preference_pairs import Pairs, log_ratios
from lydian.objectives.segments import place_in_segment


def dpo_normalised(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    length_penalty: float = 0.0,
) -> Loss:
    """DPO on means over tokens, −log σ(β (Δ_w/|y_w| − Δ_l/|y_l|) + α (|y_w| − |y_l|)).

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference, per token
    length_penalty      α ≥ 0 a token, outside β: the part of the labellers' preference that length alone explains

    |y| counts trained tokens. The sign is +: what α explains, the policy need not, so a longer chosen reply is pushed
    less; see `r_dpo`. Statistics: as `dpo`, with rewards β Δ/|y| + α |y|. Use: replies of very different lengths.
    Trap: β is per token; the same β is a far weaker loss than on sums. With α > 0 the first loss is not log 2.
    Source: Rafailov et al. (2023), arXiv:2305.18290, eq. 7, on means; penalty: Park et al. (2024), arXiv:2403.19159.

    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(dpo_normalised(current, reference, ids, pair, is_chosen, length_penalty=0.01).loss[0].item(), 4)
    0.5544
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.mean(log_ratios(logprobs, reference_logprobs)) + length_penalty * pairs.length()
    return pairs.loss(-logsigmoid(pairs.margin(reward)), reward, logprobs)


def r_dpo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    length_penalty: float = 0.01,
) -> Loss:
    """Length-regularised DPO, −log σ(β (Δ_w − Δ_l) + α (|y_w| − |y_l|)).

    Maximising E[r(y) − α |y|] − β KL(π ‖ π_reference) gives π ∝ π_reference exp((r − α |y|)/β), hence
    r = β Δ + α |y| up to a constant of the prompt: the Bradley–Terry margin of r has a plus before α.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference
    length_penalty      α ≥ 0: what a token costs, in units of reward

    Statistics: as `dpo`, with rewards β Δ + α |y|. Use: chosen replies are longer, and the policy should not learn
    that. Trap: with a minus the loss would reward length. The first loss is not log 2 where lengths differ.
    Source: Park et al. (2024), arXiv:2403.19159.

    >>> ids, pair, is_chosen = torch.tensor([0, 0, 0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> loss, statistics = r_dpo(torch.zeros(4), torch.zeros(4), ids, pair, is_chosen, length_penalty=0.15)
    >>> round(loss[0].item(), 4)  # the margin is 0.15 (3 − 1)
    0.5544
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs)) + length_penalty * pairs.length()
    return pairs.loss(-logsigmoid(pairs.margin(reward)), reward, logprobs)


def ld_dpo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    alpha: float = 0.5,
) -> Loss:
    """Length-desensitised DPO: tokens beyond the shorter reply's length count α in the sums Δ.

    −log σ(β (Δ′_w − Δ′_l)), Δ′ = Σ_{t ≤ m} d_t + α Σ_{t > m} d_t, d_t = log π − log π_reference, m = min(|y_w|, |y_l|).

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference
    alpha               α in [0, 1]: 1 is `dpo`, 0 drops what the longer reply has more

    Statistics: as `dpo`, with rewards β Δ′. Use: the longer reply's many tokens drown the rest. Trap: tokens are
    counted from the start of the trained part. Source: Liu et al. (2024), arXiv:2409.06411.

    >>> ids, pair, is_chosen = torch.tensor([0, 0, 0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> current, reference = torch.tensor([-1.0, -1.0, -1.0, -2.0]), torch.tensor([-2.0, -3.0, -5.0, -3.0])
    >>> loss = ld_dpo(current, reference, ids, pair, is_chosen).loss  # 0.1 (1 + 0.5 (2 + 4) − 1)
    >>> round(loss[0].item(), 4)
    0.5544
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    length = pairs.length()
    shorter = torch.minimum(length[pairs.chosen], length[pairs.rejected])
    ratios = log_ratios(logprobs, reference_logprobs)
    is_beyond = place_in_segment(sequence) >= shorter[pairs.site_pair]
    reward = beta * pairs.sum(torch.where(is_beyond, alpha * ratios, ratios))
    return pairs.loss(-logsigmoid(pairs.margin(reward)), reward, logprobs)
