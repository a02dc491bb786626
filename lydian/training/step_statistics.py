"""What an optimiser step measured, over all its micro-batches: means over sites, and the gap to the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lydian.data.forest import Forest
from lydian.objectives.correction import correction_statistics
from lydian.training.terms import Correction


@dataclass(slots=True)
class StepStatistics:
    """Gathers the statistics of the forests of one step; every denominator is the number of sites of the whole step."""

    loss: float = 0.0
    num_sites: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    _gaps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)
    _num_sequences: int = 0

    def add(self, loss: float, statistics: Mapping[str, Tensor]) -> None:
        """One forest's loss and its statistics, each one number a site."""
        self.loss += loss
        self.num_sites += len(next(iter(statistics.values())))
        for name, values in statistics.items():
            self.sums[name] = self.sums.get(name, 0.0) + values.sum().item()

    def add_gap(self, forest: Forest, behaviour: Tensor, proximal: Tensor, weights: Tensor) -> None:
        """One forest's logprobs under the policy that sampled and under the proximal one, and the weights applied."""
        sequence = forest.sites.sequence + self._num_sequences
        self._num_sequences += len(forest.sequence_ids)
        self._gaps.append((behaviour, proximal, sequence, weights))

    def summary(self, correction: Correction | None) -> dict[str, float]:
        """All statistics by name; those of the gap under `behaviour/`, against the bounds of the correction."""
        if not self.num_sites:
            return {}
        summary = {"loss": self.loss} | {name: total / self.num_sites for name, total in self.sums.items()}
        if self._gaps:
            behaviour, proximal, sequence, weights = (torch.cat(column) for column in zip(*self._gaps, strict=True))
            bounds = correction or Correction()
            gap = correction_statistics(
                behaviour, proximal, sequence, weights, level=bounds.level, low=bounds.low, high=bounds.high
            )
            summary["behaviour_gap"] = (behaviour - proximal).abs().mean().item()
            summary |= {f"behaviour/{name}": value for name, value in gap.items()}
        return summary
