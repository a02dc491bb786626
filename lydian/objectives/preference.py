"""Losses on pairs of a chosen and a rejected reply."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from lydian.objectives.loss import Loss


def dpo(
    logprobs: Float[Tensor, " n"],
    reference_logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
) -> Loss:
    """Direct preference optimisation, −log σ(β (Δ_chosen − Δ_rejected)) with Δ = Σ_t (log π − log π_reference).

    logprobs            [n] log π of each trained token under the current policy, in nats
    reference_logprobs  [n] the same under the reference policy, constant
    sequence            [n] index of the sequence that each token belongs to
    pair                [s] number of the pair that each sequence belongs to
    is_chosen           [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta                β > 0: the strength of the pull to the reference

    The loss of a pair is repeated at each of its sites (see `Loss`). At the start, with π equal to the reference, it is
    log 2. Statistics: reward_chosen, reward_rejected (β Δ), margin (their difference), preference_accuracy.

    Source: Rafailov et al. (2023), arXiv:2305.18290, eq. 7.

    >>> x = torch.tensor([-12.0, -100.0]); reference = torch.tensor([-15.0, -110.0]); ids = torch.tensor([0, 1])
    >>> loss = dpo(x, reference, ids, torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]), beta=0.1).loss
    >>> [round(v, 4) for v in loss.tolist()]
    [1.1032, 1.1032]
    """
    num_sequences = pair.shape[0]
    per_token = logprobs - reference_logprobs.detach()
    log_ratio = per_token.new_zeros(num_sequences).index_add(0, sequence, per_token)
    pair_index = torch.unique(pair, return_inverse=True)[1]
    num_pairs = int(pair_index.max()) + 1 if num_sequences else 0
    reward = beta * log_ratio
    empty = reward.new_zeros(num_pairs)
    chosen = empty.index_add(0, pair_index, reward * is_chosen)
    rejected = empty.index_add(0, pair_index, reward * (1 - is_chosen))
    margin = chosen - rejected
    site_pair = pair_index[sequence]
    statistics = {
        "reward_chosen": chosen,
        "reward_rejected": rejected,
        "margin": margin,
        "preference_accuracy": (margin > 0).float(),
    }
    return Loss(-logsigmoid(margin)[site_pair], {name: v.detach()[site_pair] for name, v in statistics.items()})
