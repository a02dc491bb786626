"""Advantages of whole completions from the rewards of their group. Constants: nothing here carries gradients."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def group_mean(reward: Float[Tensor, " s"], group: Int[Tensor, " s"]) -> Float[Tensor, " s"]:
    """Reward minus the mean of its group, A_i = r_i − mean_j r_j.

    The mean includes i itself, so the expected gradient is (G − 1)/G of the one without a baseline: same direction,
    smaller step. A group of one has advantage 0.

    reward  [s] one a completion
    group   [s] index of the group of each completion

    Source: Liu et al. (2025), "Dr. GRPO", arXiv:2503.20783.

    >>> group_mean(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.long)).tolist()
    [0.75, -0.25, -0.25, -0.25]
    """
    total, count = _sums(reward, group)
    return reward - (total / count)[group]


def group_mean_std(
    reward: Float[Tensor, " s"], group: Int[Tensor, " s"], *, ddof: int = 1, epsilon: float = 1e-6
) -> Float[Tensor, " s"]:
    """Reward standardised within its group, A_i = (r_i − mean r) / (std r + ε).

    reward   [s] one a completion
    group    [s] index of the group of each completion
    ddof     1 divides the squared deviations by G − 1 (sample), 0 by G (population)
    epsilon  added to the standard deviation

    Equal rewards, or a group of one, give 0. Source: Shao et al. (2024), "DeepSeekMath" (GRPO), arXiv:2402.03300.

    >>> one_right, group = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.long)
    >>> [round(a, 4) for a in group_mean_std(one_right, group, ddof=0, epsilon=0.0).tolist()]
    [1.7321, -0.5774, -0.5774, -0.5774]
    """
    deviation = group_mean(reward, group)
    squares, count = _sums(deviation**2, group)
    std = (squares / (count - ddof).clamp(min=1)).sqrt()[group]
    return torch.where(std > 0, deviation / (std + epsilon), torch.zeros_like(deviation))


def leave_one_out(reward: Float[Tensor, " s"], group: Int[Tensor, " s"]) -> Float[Tensor, " s"]:
    """Reward minus the mean of the others of its group, A_i = r_i − mean_{j≠i} r_j: an unbiased baseline.

    reward  [s] one a completion
    group   [s] index of the group of each completion

    Raises ValueError for a group of one: there are no others. Source: Ahmadian et al. (2024), arXiv:2402.14740, eq. 9.

    >>> leave_one_out(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.long)).tolist()
    [1.0, -0.3333333432674408, -0.3333333432674408, -0.3333333432674408]
    """
    total, count = _sums(reward, group)
    if (count == 1).any():
        raise ValueError("leave_one_out: a group has one member; it needs at least two samples a problem")
    return reward - ((total[group] - reward) / (count - 1)[group])


def raw_reward(reward: Float[Tensor, " s"], group: Int[Tensor, " s"]) -> Float[Tensor, " s"]:
    """The reward itself, no baseline: A_i = r_i.

    reward  [s] one a completion
    group   [s] index of the group of each completion (not used)
    """
    return reward


def _sums(values: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    num_groups = int(group.max()) + 1 if group.numel() else 0
    total = values.new_zeros(num_groups).index_add_(0, group, values)
    count = values.new_zeros(num_groups).index_add_(0, group, torch.ones_like(values))
    return total, count
