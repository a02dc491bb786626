"""Losses on pairs that say where each reply shall go, not only how far apart. Symbols as in `preference`."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from lydian.objectives.loss import Loss
from lydian.objectives.preference_pairs import Pairs, log_ratios


def apo_zero(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Anchored preference optimisation, 1 − σ(β Δ_w) + σ(β Δ_l): the chosen reply up, the rejected one down.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference

    Statistics: as `dpo`. Use: the chosen replies are better than what the policy writes now. Trap: the first loss is 1;
    the gradient fades on both sides of zero. Source: D'Oosterlinck et al. (2024), arXiv:2408.06266.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(apo_zero(current, reference, ids, pair, is_chosen).loss[0].item(), 4)  # 1 − σ(0.2) + σ(−0.1)
    0.9252
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    return pairs.loss((-reward[pairs.chosen]).sigmoid() + reward[pairs.rejected].sigmoid(), reward, logprobs)


def apo_down(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Anchored preference optimisation, σ(β Δ_w) + 1 − σ(h): both down, the rejected reply further.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference

    Statistics: as `dpo`. Use: the policy already writes better than the chosen replies. Trap: chosen_logprobs falls by
    design. Source: D'Oosterlinck et al. (2024), arXiv:2408.06266.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(apo_down(current, reference, ids, pair, is_chosen).loss[0].item(), 4)  # σ(0.2) + 1 − σ(0.3)
    0.9754
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    return pairs.loss(reward[pairs.chosen].sigmoid() + (-pairs.margin(reward)).sigmoid(), reward, logprobs)


def nca(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Noise-contrastive alignment of a pair, −log σ(β Δ_w) − ½ log σ(−β Δ_w) − ½ log σ(−β Δ_l).

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference

    Statistics: as `dpo`. Use: DPO lets the chosen reply's likelihood fall; this holds it (least at β Δ_w = log 2).
    Trap: the first loss is 2 log 2. Source: Chen et al. (2024), arXiv:2402.05369.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> round(nca(current, reference, ids, pair, is_chosen).loss[0].item(), 4)
    1.3194
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    chosen, rejected = reward[pairs.chosen], reward[pairs.rejected]
    return pairs.loss(-logsigmoid(chosen) - 0.5 * (logsigmoid(-chosen) + logsigmoid(-rejected)), reward, logprobs)


def sppo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Self-play preference optimisation with hard labels, (Δ_w − 1/(2β))² + (Δ_l + 1/(2β))².

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the log-ratios are drawn to ±1/(2β) nats

    Statistics: as `dpo`. Use: rounds on the policy's own samples, the reference being the policy of the last round.
    Trap: the first loss is 1/(2β²), 50 at β = 0.1; compare losses only at one β.
    Source: Wu et al. (2024), arXiv:2405.00675, with win probabilities 1 and 0 and η = 1/β.

    >>> import torch
    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> sppo(current, reference, ids, pair, is_chosen, beta=0.1).loss[0].item()  # (2 − 5)² + (−1 + 5)²
    25.0
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    log_ratio = pairs.sum(log_ratios(logprobs, reference_logprobs))
    goal = 1 / (2 * beta)
    loss = (log_ratio[pairs.chosen] - goal) ** 2 + (log_ratio[pairs.rejected] + goal) ** 2
    return pairs.loss(loss, beta * log_ratio, logprobs)
