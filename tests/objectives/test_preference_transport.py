"""AOT against its definition: the sorted loss over the whole step, value and gradient, however the step is split."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lydian.objectives.preference_transport import aot, aot_partners, aot_unpaired, aot_unpaired_partners
from lydian.objectives.segments import segment_size, segment_sum

BETA, NUM_PAIRS = 0.7, 6
LENGTHS = torch.tensor([3, 1, 4, 1, 5, 2, 2, 6, 1, 2, 3, 1])
SEQUENCE = torch.repeat_interleave(torch.arange(2 * NUM_PAIRS), LENGTHS)
PAIR = torch.arange(NUM_PAIRS, dtype=torch.float64).repeat(2)
CHOSEN = torch.cat([torch.ones(NUM_PAIRS), torch.zeros(NUM_PAIRS)]).double()


def draw() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    policy, reference = -torch.rand((2, len(SEQUENCE)), generator=generator, dtype=torch.float64) * 3
    return policy.requires_grad_(), reference


def sums(values: Tensor) -> Tensor:
    return segment_sum(values, SEQUENCE, 2 * NUM_PAIRS)


def sorted_loss(high: Tensor, low: Tensor) -> Tensor:
    """The definition: −log σ of sorted differences, mean over the step."""
    return -logsigmoid(BETA * (high.sort().values - low.sort().values)).mean()


def in_micro_batches(weight: Tensor, splits: list[list[int]], loss) -> tuple[float, Tensor]:
    """Σ weight · loss and its gradient, pairs of each split in a call of their own, sequences renumbered."""
    policy, reference = draw()
    total = torch.zeros((), dtype=torch.float64)
    for pairs in splits:
        keep = torch.isin(PAIR, torch.tensor(pairs, dtype=torch.float64))
        number = keep.long().cumsum(0) - 1
        sites = keep[SEQUENCE]
        got = loss(policy[sites], reference[sites], number[SEQUENCE[sites]], keep)
        total = total + (weight[sites] * got.loss).sum()
    total.backward()
    assert policy.grad is not None
    return total.item(), policy.grad


SPLITS = [[[0, 1, 2, 3, 4, 5]], [[0, 1], [2, 3, 4], [5]], [[5], [3], [1], [0], [2], [4]]]


@pytest.mark.parametrize("splits", SPLITS)
def test_paired_is_the_sorted_loss(splits: list[list[int]]):
    """pair_mean: a site weighs 1/(P n_p), n_p the sites of its pair."""
    policy, reference = draw()
    own, other = sums(policy), sums(reference)
    expected = sorted_loss(own[:6] - own[6:], other[:6] - other[6:])
    expected.backward()
    partner = aot_partners(own, other, PAIR, CHOSEN)
    size = LENGTHS[:6] + LENGTHS[6:]
    weight = (1 / (NUM_PAIRS * size.double())).repeat(2)[SEQUENCE]
    value, gradient = in_micro_batches(
        weight, splits, lambda x, r, ids, keep: aot(x, r, ids, PAIR[keep], CHOSEN[keep], partner[keep], beta=BETA)
    )
    assert value == pytest.approx(expected.item())
    torch.testing.assert_close(gradient, policy.grad)


@pytest.mark.parametrize("splits", SPLITS)
def test_unpaired_is_the_sorted_loss(splits: list[list[int]]):
    """sequence_mean: a site weighs 1/(S n_s). The partner is held constant on both sides, yet the gradient is whole."""
    policy, reference = draw()
    log_ratio = sums(policy) - sums(reference)
    expected = sorted_loss(log_ratio[:6], log_ratio[6:])
    expected.backward()
    partner = aot_unpaired_partners(log_ratio, CHOSEN)
    weight = (1 / (2 * NUM_PAIRS * segment_size(SEQUENCE, 2 * NUM_PAIRS).double()))[SEQUENCE]
    value, gradient = in_micro_batches(
        weight, splits, lambda x, r, ids, keep: aot_unpaired(x, r, ids, CHOSEN[keep], partner[keep], beta=BETA)
    )
    assert value == pytest.approx(expected.item())
    torch.testing.assert_close(gradient, policy.grad)


def test_partners_by_hand():
    """Policy margins 2 and 3, reference margins 4 and 1: the smaller 2 meets 1, the larger 3 meets 4."""
    pair, chosen = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    reference = torch.tensor([-1.0, -5.0, -2.0, -3.0])
    assert aot_partners(torch.tensor([-1.0, -3.0, -1.0, -4.0]), reference, pair, chosen).tolist() == [1, 1, 4, 4]
    log_ratio = torch.tensor([3.0, -2.0, 1.0, -1.0])
    assert aot_unpaired_partners(log_ratio, chosen).tolist() == [-1, 1, -2, 3]


def test_partners_carry_no_gradient_and_need_equal_classes():
    x = torch.tensor([3.0, 1.0], requires_grad=True)
    assert not aot_unpaired_partners(x, torch.tensor([1.0, 0.0])).requires_grad
    assert not aot_partners(x, x, torch.zeros(2), torch.tensor([1.0, 0.0])).requires_grad
    with pytest.raises(ValueError, match="equal"):
        aot_unpaired_partners(torch.zeros(3), torch.tensor([1.0, 1.0, 0.0]))


def test_a_step_of_one_pair_is_dpo():
    """With one pair there is nothing to sort: −log σ(.1 · (2 + 1)) = .5544."""
    x, reference = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])
    ids, pair, chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    paired = aot(x, reference, ids, pair, chosen, aot_partners(x, reference, pair, chosen), beta=0.1)
    unpaired = aot_unpaired(x, reference, ids, chosen, aot_unpaired_partners(x - reference, chosen), beta=0.1)
    for got in (paired, unpaired):
        assert got.loss[0].item() == pytest.approx(math.log(1 + math.exp(-0.3)))
    assert unpaired.statistics["margin"].tolist() == pytest.approx([0.3, 0.3])
    assert unpaired.statistics["preference_accuracy"].tolist() == [1, 1]


def test_unpaired_extremes_stay_finite():
    x = torch.tensor([-torch.inf, -50.0], requires_grad=True)
    got = aot_unpaired(x, torch.zeros(2), torch.tensor([0, 1]), torch.tensor([1.0, 0.0]), torch.tensor([50.0, -1e4]))
    got.loss.sum().backward()
    assert got.loss.isfinite().all() and x.grad is not None and x.grad.isfinite().all()
