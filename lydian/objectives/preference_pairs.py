"""Which sequences of a call form pairs, and what every loss on pairs reports. The losses themselves stand elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lydian.objectives.loss import Loss
from lydian.objectives.precision import finite_logprobs
from lydian.objectives.segments import segment_mean, segment_size, segment_sum


class Pairs(NamedTuple):
    """The pairs of a call: s = 2p sequences, n sites.

    sequence   [n] index of the sequence of each site
    chosen     [p] index of the chosen sequence of each pair
    rejected   [p] index of the rejected one
    site_pair  [n] index of the pair of each site
    """

    sequence: Tensor
    chosen: Tensor
    rejected: Tensor
    site_pair: Tensor

    @staticmethod
    def of(sequence: Int[Tensor, " n"], pair: Float[Tensor, " s"], is_chosen: Float[Tensor, " s"]) -> Pairs:
        """Pairs sequences up. Raises ValueError unless each pair has one chosen and one rejected sequence."""
        index, chosen, rejected = pair_up(pair, is_chosen)
        return Pairs(sequence, chosen, rejected, index[sequence])

    def sum(self, values: Float[Tensor, " n"]) -> Float[Tensor, " s"]:
        """Σ over the sites of each sequence."""
        return segment_sum(values, self.sequence, 2 * len(self.chosen))

    def mean(self, values: Float[Tensor, " n"]) -> Float[Tensor, " s"]:
        """Mean over the sites of each sequence."""
        return segment_mean(values, self.sequence, 2 * len(self.chosen))

    def length(self) -> Int[Tensor, " s"]:
        """Number of sites of each sequence."""
        return segment_size(self.sequence, 2 * len(self.chosen))

    def margin(self, values: Float[Tensor, " s"]) -> Float[Tensor, " p"]:
        """Value of the chosen sequence minus that of the rejected one."""
        return values[self.chosen] - values[self.rejected]

    def loss(self, loss: Float[Tensor, " p"], reward: Float[Tensor, " s"], logprobs: Float[Tensor, " n"]) -> Loss:
        """The loss of each pair at each of its sites, with the statistics that all losses on pairs share.

        reward_chosen, reward_rejected, margin: the loss's own reward of both sides and its difference;
        preference_accuracy: 1 where the margin is positive; chosen_logprobs, rejected_logprobs: Σ log π in nats,
        so that a chosen reply that grows less likely while the margin grows can be seen.
        """
        total = self.sum(finite_logprobs(logprobs.detach()))
        margin = self.margin(reward.detach())
        statistics = {
            "reward_chosen": reward.detach()[self.chosen],
            "reward_rejected": reward.detach()[self.rejected],
            "margin": margin,
            "preference_accuracy": (margin > 0).float(),
            "chosen_logprobs": total[self.chosen],
            "rejected_logprobs": total[self.rejected],
        }
        return Loss(loss[self.site_pair], {name: values[self.site_pair] for name, values in statistics.items()})


def pair_up(
    pair: Float[Tensor, " s"], is_chosen: Float[Tensor, " s"]
) -> tuple[Int[Tensor, " s"], Int[Tensor, " p"], Int[Tensor, " p"]]:
    """Index of the pair of each sequence, and of the chosen and the rejected sequence of each pair.

    pair       [s] number of the pair of each sequence
    is_chosen  [s] 1 for the chosen sequence of its pair, 0 for the rejected one

    Raises ValueError unless each pair has one of each.

    >>> [part.tolist() for part in pair_up(torch.tensor([7.0, 4.0, 4.0, 7.0]), torch.tensor([1.0, 0.0, 1.0, 0.0]))]
    [[1, 0, 0, 1], [2, 0], [1, 3]]
    """
    numbers, index = torch.unique(pair, return_inverse=True)
    slot, order = (2 * index + (is_chosen < 0.5).long()).sort()
    if not torch.equal(slot, torch.arange(2 * len(numbers), device=pair.device)):
        raise ValueError(
            f"pairs {pair.tolist()} with is_chosen {is_chosen.tolist()}: each pair needs one chosen and one rejected "
            "sequence in the same call; give both sides the same number and keep them together"
        )
    return index, order[0::2], order[1::2]


def log_ratios(logprobs: Float[Tensor, " n"], reference_logprobs: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """log π − log π_reference of each token, in nats; no gradient to the reference.

    >>> log_ratios(torch.tensor([-1.0, -torch.inf]), torch.tensor([-1.5, -torch.inf])).tolist()
    [0.5, 0.0]
    """
    return finite_logprobs(logprobs) - finite_logprobs(reference_logprobs.detach())
