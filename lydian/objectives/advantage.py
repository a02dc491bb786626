"""Advantages of whole completions from their rewards. Constants: nothing here carries gradients.

Each function sees a whole step at once, never a micro-batch: groups are complete and the batch's statistics are final.
Equal rewards give exactly 0: deviations are taken from the smallest reward first, so that no rounding is left over.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from lydian.objectives.precision import constant
from lydian.objectives.segments import segment_size, segment_sum


def group_mean(reward: Float[Tensor, " s"], group: Int[Tensor, " s"]) -> Float[Tensor, " s"]:
    """Reward minus the mean of its group, A_i = r_i − mean_j r_j.

    The mean includes i itself, so the expected gradient is (G − 1)/G of the one without a baseline: same direction,
    smaller step. A group of one has advantage 0.

    reward  [s] one a completion
    group   [s] index of the group of each completion

    Use: with verifiable rewards, where a group's spread says how hard the problem is and should not be divided out.
    Source: Liu et al. (2025), "Dr. GRPO", arXiv:2503.20783.

    >>> group_mean(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.long)).tolist()
    [0.75, -0.25, -0.25, -0.25]
    """
    above = _above_least(reward, group)
    total, count = _sums(above, group)
    return above - (total / count)[group]


def group_mean_std(
    reward: Float[Tensor, " s"], group: Int[Tensor, " s"], *, ddof: int = 1, epsilon: float = 1e-6
) -> Float[Tensor, " s"]:
    """Reward standardised within its group, A_i = (r_i − mean r) / (std r + ε).

    reward   [s] one a completion
    group    [s] index of the group of each completion
    ddof     1 divides the squared deviations by G − 1 (sample), 0 by G (population)
    epsilon  added to the standard deviation

    Equal rewards, or a group of one, give 0. Trap: nearly solved and nearly hopeless problems weigh most.
    Source: Shao et al. (2024), "DeepSeekMath" (GRPO), arXiv:2402.03300.

    >>> one_right, group = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.long)
    >>> [round(a, 4) for a in group_mean_std(one_right, group, ddof=0, epsilon=0.0).tolist()]
    [1.7321, -0.5774, -0.5774, -0.5774]
    """
    deviation = group_mean(reward, group)
    return _divided(deviation, _std(deviation, group, ddof)[group], epsilon)


def leave_one_out(reward: Float[Tensor, " s"], group: Int[Tensor, " s"]) -> Float[Tensor, " s"]:
    """Reward minus the mean of the others of its group, A_i = r_i − mean_{j≠i} r_j: an unbiased baseline.

    reward  [s] one a completion
    group   [s] index of the group of each completion

    Raises ValueError for a group of one: there are no others. Source: Ahmadian et al. (2024), arXiv:2402.14740, eq. 9.

    >>> leave_one_out(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.long)).tolist()
    [1.0, -0.3333333432674408, -0.3333333432674408, -0.3333333432674408]
    """
    above = _above_least(reward, group)
    total, count = _sums(above, group)
    if (count == 1).any():
        raise ValueError("leave_one_out: a group has one member; it needs at least two samples a problem")
    return above - (total[group] - above) / (count - 1)[group]


def raw_reward(reward: Float[Tensor, " s"], group: Int[Tensor, " s"]) -> Float[Tensor, " s"]:
    """The reward itself, no baseline: A_i = r_i.

    reward  [s] one a completion
    group   [s] index of the group of each completion (not used)
    """
    return constant(reward)


def max_rl(reward: Float[Tensor, " s"], group: Int[Tensor, " s"]) -> Float[Tensor, " s"]:
    """Maximum-likelihood RL, A_i = (r_i − mean r) / mean r over its group; a group whose mean is 0 gives 0.

    reward  [s] one a completion, ≥ 0: 1 for right and 0 for wrong
    group   [s] index of the group of each completion

    On average its gradient is that of Σ_{k<G} pass@k / k, a truncation of log(probability of a right answer), so rarely
    solved problems weigh more than under `group_mean`. A group of one has advantage 0. Raises ValueError for a negative
    reward: the mean must be a success rate. Source: Tajwar et al. (2026), "MaxRL", arXiv:2602.02710.

    >>> max_rl(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.long)).tolist()
    [3.0, -1.0, -1.0, -1.0]
    """
    if (reward < 0).any():
        raise ValueError("max_rl: a reward is negative; it needs rewards ≥ 0, best 0 and 1")
    total, count = _sums(constant(reward), group)
    return _divided(group_mean(reward, group), (total / count)[group], 0.0)


def batch_whiten(
    reward: Float[Tensor, " s"], group: Int[Tensor, " s"], *, ddof: int = 1, epsilon: float = 1e-8
) -> Float[Tensor, " s"]:
    """Reward standardised over the whole step, whatever its group: A_i = (r_i − mean r) / (std r + ε).

    reward   [s] one a completion
    group    [s] index of the group of each completion (not used)
    ddof     1 divides the squared deviations by s − 1 (sample), 0 by s (population)
    epsilon  added to the standard deviation

    Works with one sample a problem. Trap: an easy problem's answers all look good, a hard one's all bad.
    Source: Hu et al. (2025), "REINFORCE++", arXiv:2501.03262.

    >>> batch_whiten(torch.tensor([1.0, 3.0]), torch.tensor([0, 1]), ddof=0, epsilon=0.0).tolist()
    [-1.0, 1.0]
    """
    return whiten(reward, ddof=ddof, epsilon=epsilon)


def whiten(values: Float[Tensor, " n"], *, ddof: int = 1, epsilon: float = 1e-8) -> Float[Tensor, " n"]:
    """Values standardised over all of them, (v − mean v) / (std v + ε).

    values   [n] advantages of all trained tokens (or sequences) of a step
    ddof     1 divides the squared deviations by n − 1 (sample), 0 by n (population)
    epsilon  added to the standard deviation

    Equal values, or a single one, give 0. Trap: over tokens long sequences dominate the mean; over sequences they do
    not. Source: Schulman et al. (2017), PPO, as implemented in openai/baselines; Hu et al. (2025), arXiv:2501.03262.

    >>> whiten(torch.tensor([1.0, 3.0]), ddof=0, epsilon=0.0).tolist()
    [-1.0, 1.0]
    """
    return group_mean_std(values, torch.zeros_like(values, dtype=torch.long), ddof=ddof, epsilon=epsilon)


def group_mean_batch_std(
    reward: Float[Tensor, " s"],
    group: Int[Tensor, " s"],
    *,
    std_of: Literal["deviation", "reward"] = "deviation",
    ddof: int = 1,
    epsilon: float = 1e-8,
) -> Float[Tensor, " s"]:
    """Centred by its group, scaled by the whole step: A_i = (r_i − mean_group r) / (std_batch + ε).

    reward   [s] one a completion
    group    [s] index of the group of each completion
    std_of   deviation: of r_i − mean_group r (REINFORCE++-baseline); reward: of r_i, also between groups (Lite PPO)
    ddof     1 divides the squared deviations by s − 1 (sample), 0 by s (population)
    epsilon  added to the standard deviation

    A group of equal rewards, or of one, gives 0; unlike `group_mean_std` no group is blown up for having little spread.
    Source: Hu et al. (2025), arXiv:2501.03262; Liu et al. (2025), "Tricks or traps?", arXiv:2508.08221.

    >>> reward, group = torch.tensor([1.0, 0.0, 5.0, 5.0]), torch.tensor([0, 0, 1, 1])
    >>> [round(a, 4) for a in group_mean_batch_std(reward, group, ddof=0, epsilon=0.0).tolist()]
    [1.4142, -1.4142, 0.0, 0.0]
    """
    deviation, batch = group_mean(reward, group), torch.zeros_like(group)
    spread = deviation if std_of == "deviation" else group_mean(reward, batch)
    return _divided(deviation, _std(spread, batch, ddof)[batch], epsilon)


def remax(
    reward: Float[Tensor, " s"], group: Int[Tensor, " s"], greedy_reward: Float[Tensor, " s"]
) -> Float[Tensor, " s"]:
    """Reward minus that of the greedy answer to the same problem, A_i = r_i − r_greedy: an unbiased baseline.

    reward         [s] one a completion
    group          [s] index of the group of each completion (not used)
    greedy_reward  [s] reward of the greedy completion of the same problem, by the policy that sampled

    Use: one sample a problem and no critic; costs one more generation a problem. Trap: the greedy answer must come from
    the weights that sampled. Source: Li et al. (2023), "ReMax", arXiv:2310.10505.

    >>> remax(torch.tensor([1.0, 0.0]), torch.tensor([0, 1]), torch.tensor([0.25, 1.0])).tolist()
    [0.75, -1.0]
    """
    return constant(reward) - constant(greedy_reward)


def normalise_then_sum(
    rewards: Float[Tensor, "s k"],
    group: Int[Tensor, " s"],
    *,
    weights: tuple[float, ...] | None = None,
    is_whitened: bool = True,
    ddof: int = 1,
    epsilon: float = 1e-6,
) -> Float[Tensor, " s"]:
    """Several rewards, each standardised within its group before they are added: A_i = Σ_k w_k z_ik, then whitened.

    rewards      [s, k] every reward of each completion, none absent; a verdict's parts in the order of their names
    group        [s] index of the group of each completion
    weights      w, one a reward; None weighs all alike
    is_whitened  whether the sums are standardised over the whole step, so that their scale is free of k and w
    ddof         1 divides squared deviations by their number − 1 (sample), 0 by their number (population)
    epsilon      added to every standard deviation

    z_ik = (r_ik − mean_group r_k) / (std_group r_k + ε). Raises ValueError for weights of another number.
    Use: rewards of unlike scale or rarity; added first, the widest one decides and unlike combinations tie.
    Source: Liu et al. (2026), "GDPO", arXiv:2601.05242.

    >>> rewards, group = torch.tensor([[1.0, 0.0], [0.0, 100.0]]), torch.tensor([0, 0])
    >>> normalise_then_sum(rewards, group, weights=(1.0, 0.5), is_whitened=False, ddof=0, epsilon=0.0).tolist()
    [0.5, -0.5]
    """
    weights = weights or (1.0,) * rewards.shape[1]
    if len(weights) != rewards.shape[1]:
        raise ValueError(f"normalise_then_sum: {len(weights)} weights for {rewards.shape[1]} rewards")
    parts = [group_mean_std(reward, group, ddof=ddof, epsilon=epsilon) for reward in rewards.unbind(1)]
    total = torch.stack(parts, 1) @ parts[0].new_tensor(weights)
    return whiten(total, ddof=ddof, epsilon=epsilon) if is_whitened else total


def soft_overlong(length: Real[Tensor, " s"], *, limit: int, buffer: int) -> Float[Tensor, " s"]:
    """Penalty on long completions to add to the reward: 0 up to L − c, then (L − c − length)/c, −1 from L on.

    length  [s] sampled tokens of each completion
    limit   L, in tokens
    buffer  c in (0, L], in tokens: where the penalty begins before the limit

    Raises ValueError for a buffer outside (0, limit]. Trap: filter groups by the verdict, not by this sum: the penalty
    makes a group without signal look alive. Source: DAPO (2025), arXiv:2503.14476, eq. 13.

    >>> soft_overlong(torch.tensor([80, 90, 100, 101]), limit=100, buffer=20).tolist()
    [0.0, -0.5, -1.0, -1.0]
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"soft_overlong: buffer is {buffer}; it must lie in (0, limit = {limit}]")
    return -((length - (limit - buffer)) / buffer).clamp(0, 1)


def _above_least(reward: Tensor, group: Tensor) -> Tensor:
    """How far each reward is above the least of its group: 0 exactly where all are equal."""
    reward = constant(reward)
    least = reward.new_full((_num_groups(group),), torch.inf).scatter_reduce(0, group, reward, "amin")
    return reward - least[group]


def _sums(values: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    count = _num_groups(group)
    return segment_sum(values, group, count), segment_size(group, count)


def _std(deviation: Tensor, group: Tensor, ddof: int) -> Tensor:
    squares, count = _sums(deviation**2, group)
    return (squares / (count - ddof).clamp(min=1)).sqrt()


def _divided(deviation: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    return torch.where(scale > 0, deviation / (scale + epsilon), torch.zeros_like(deviation))


def _num_groups(group: Tensor) -> int:
    return int(group.max()) + 1 if group.numel() else 0
