"""Alignment by optimal transport (AOT): the distribution of chosen log-ratios shall lie above that of the rejected.

Sorting couples the step, so that it is done beforehand, on detached numbers of the whole step (`aot_partners`,
`aot_unpaired_partners`); the losses get each sequence's partner as a fact. The order of a sorted loss is constant
between ties, so that the gradient with a fixed partner is the gradient of the sorted loss.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from lydian.objectives.loss import Loss
from lydian.objectives.precision import finite_logprobs
from lydian.objectives.preference_pairs import Pairs, log_ratios, pair_up
from lydian.objectives.segments import segment_sum


def aot(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    partner_margin: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Paired AOT, −log σ(β (m_(k) − m_reference,(k))): the k-th smallest margins of both policies are compared.

    m = Σ log π(y_w) − Σ log π(y_l) of a pair under the policy, m_reference under the reference, each sorted over the
    step. Every margin of the policy stands in one term only, beside a constant: with `pair_mean` the step's loss and
    its gradient are those of the sorted loss.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    pair                [s] number of the pair of each sequence
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    partner_margin      [s] m_reference of the same rank as the pair's own m (`aot_partners`), constant, in nats
    beta                β > 0: scale of the margins

    Statistics: as `dpo` (rewards β Δ against the reply's own reference). Use: preferences that hold for the
    distribution, not for each pair. Trap: partners are of the weights at the step's start; compute them every step.
    Source: Melnyk et al. (2024), arXiv:2406.05882.

    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> partner = torch.tensor([-1.0, -1.0])  # the policy's margin is −1 + 3 = 2
    >>> round(aot(current, reference, ids, pair, is_chosen, partner).loss[0].item(), 4)  # h = 0.1 (2 + 1)
    0.5544
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    margin = pairs.margin(pairs.sum(finite_logprobs(logprobs)))
    reward = beta * pairs.sum(log_ratios(logprobs, reference_logprobs))
    loss = -logsigmoid(beta * (margin - partner_margin.detach()[pairs.chosen]))
    return pairs.loss(loss, reward, logprobs)


def aot_unpaired(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    is_chosen: Float[Tensor, " s"],
    partner_log_ratio: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Unpaired AOT, f = −log σ(β (Δ_w,(k) − Δ_l,(k))): the k-th smallest log-ratios of both classes are compared.

    A term of the sorted mean (1/P) Σ_k f stands at its chosen and at its rejected sequence, each holding the other
    constant. With `sequence_mean` (weight 1/(2P) a sequence) the values add up to the mean; each side's gradient would
    be half of what it should, hence f + (f − sg f): the value f, twice its slope. Value and gradient are then those of
    the sorted loss, whatever the micro-batches.

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence of each token
    is_chosen           [s] 1 for a chosen sequence, 0 for a rejected one; as many of each in the step
    partner_log_ratio   [s] Δ of the sequence of the other class and the same rank (`aot_unpaired_partners`), constant
    beta                β > 0: scale of the log-ratios

    Statistics: reward (β Δ), margin (chosen minus rejected side of the term), preference_accuracy (margin > 0),
    sequence_logprobs (Σ log π in nats). Use: `sequence_mean` and no other normaliser; good and bad replies without
    pairs. Trap: finite differences of the returned loss give half of its gradient, by design.
    Source: Melnyk et al. (2024), arXiv:2406.05882.

    >>> current, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])  # Δ = 2, −1
    >>> ids, is_chosen, partner = torch.tensor([0, 1]), torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 2.0])
    >>> [round(v, 4) for v in aot_unpaired(current, reference, ids, is_chosen, partner).loss.tolist()]
    [0.5544, 0.5544]
    """
    log_ratio = segment_sum(log_ratios(logprobs, reference_logprobs), sequence, len(is_chosen))
    margin = beta * (2 * is_chosen - 1) * (log_ratio - partner_log_ratio.detach())
    term = -logsigmoid(margin)
    loss = term + (term - term.detach())
    statistics = {
        "reward": beta * log_ratio.detach(),
        "margin": margin.detach(),
        "preference_accuracy": (margin > 0).float(),
        "sequence_logprobs": segment_sum(finite_logprobs(logprobs.detach()), sequence, len(is_chosen)),
    }
    return Loss(loss[sequence], {name: values[sequence] for name, values in statistics.items()})


def aot_partners(
    logprob_sum: Float[Tensor, " s"],
    reference_logprob_sum: Float[Tensor, " s"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
) -> Float[Tensor, " s"]:
    """For `aot`: the reference's margin that has the rank of the pair's own margin; the same at both its sequences.

    logprob_sum            [s] Σ log π of each sequence of the whole step under the current policy, in nats
    reference_logprob_sum  [s] the same under the reference policy
    pair                   [s] number of the pair of each sequence
    is_chosen              [s] 1 for the chosen sequence of its pair, 0 for the rejected one

    Ties keep the order of the pairs' numbers. Source: Melnyk et al. (2024), arXiv:2406.05882.

    >>> pair, is_chosen = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    >>> reference = torch.tensor([-1.0, -5.0, -2.0, -3.0])  # margins 4 and 1; the policy's are 2 and 3
    >>> aot_partners(torch.tensor([-1.0, -3.0, -1.0, -4.0]), reference, pair, is_chosen).tolist()
    [1.0, 1.0, 4.0, 4.0]
    """
    index, chosen, rejected = pair_up(pair, is_chosen)
    own, reference = finite_logprobs(logprob_sum.detach()), finite_logprobs(reference_logprob_sum.detach())
    return _of_same_rank(own[chosen] - own[rejected], reference[chosen] - reference[rejected])[index]


def aot_unpaired_partners(log_ratio: Float[Tensor, " s"], is_chosen: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """For `aot_unpaired`: the log-ratio of the sequence of the other class that has the same rank in its class.

    log_ratio  [s] Σ_t (log π − log π_reference) of each sequence of the whole step, in nats
    is_chosen  [s] 1 for a chosen sequence, 0 for a rejected one

    Raises ValueError unless there are as many of each. Source: Melnyk et al. (2024), arXiv:2406.05882.

    >>> aot_unpaired_partners(torch.tensor([3.0, 1.0, -2.0, -1.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])).tolist()
    [-1.0, -2.0, 1.0, 3.0]
    """
    chosen = is_chosen > 0.5
    if 2 * int(chosen.sum()) != len(chosen):
        raise ValueError(
            f"aot_unpaired_partners: {int(chosen.sum())} chosen of {len(chosen)} sequences; ranks match only between "
            "equal numbers of chosen and rejected sequences in a step"
        )
    values = log_ratio.detach()
    partner = torch.empty_like(values)
    partner[chosen] = _of_same_rank(values[chosen], values[~chosen])
    partner[~chosen] = _of_same_rank(values[~chosen], values[chosen])
    return partner


def _of_same_rank(values: Tensor, others: Tensor) -> Tensor:
    """For each value, the one of `others` with its rank."""
    order = torch.argsort(values, stable=True)
    return torch.empty_like(others).scatter_(0, order, others.sort().values)
