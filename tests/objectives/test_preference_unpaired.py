"""Losses on single replies and the numbers of a whole step that they need."""

from __future__ import annotations

import math

import pytest
import torch

from lydian.objectives.preference_unpaired import bco, bco_shift, kto, kto_kl, mismatched_replies


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# Two replies of two and one token, interleaved: Δ = 2 (desirable) and −1 (not).
IDS, DESIRABLE = torch.tensor([0, 1, 0]), torch.tensor([1.0, 0.0])
CURRENT, REFERENCE = torch.tensor([-1.0, -3.0, -2.0]), torch.tensor([-2.5, -2.0, -2.5])


def test_kto_by_hand():
    """β = .1, z = .5: desirable r = 2: 1 − σ(.15) = .46257; undesirable r = −1: 1 − σ(.1·(.5 + 1)) = .46257."""
    loss, statistics = kto(CURRENT, REFERENCE, IDS, DESIRABLE, torch.full((2,), 0.5), beta=0.1)
    torch.testing.assert_close(loss, torch.full((3,), 0.46257), atol=5e-6, rtol=0)
    torch.testing.assert_close(statistics["reward"], torch.tensor([0.2, -0.1, 0.2]))
    torch.testing.assert_close(statistics["signed_reward"], torch.tensor([0.2, 0.1, 0.2]))
    assert statistics["preference_accuracy"].tolist() == [1, 1, 1]
    assert statistics["sequence_logprobs"].tolist() == [-3, -3, -3]


def test_kto_class_weights_and_reference_point():
    """Weights scale each class's loss; z moves the classes against each other and gets no gradient."""
    z = torch.full((2,), 0.5, requires_grad=True)
    x = CURRENT.clone().requires_grad_()
    loss = kto(x, REFERENCE, IDS, DESIRABLE, z, beta=0.1, desirable_weight=2.0, undesirable_weight=0.5).loss
    torch.testing.assert_close(loss.detach(), torch.tensor([0.92514, 0.23128, 0.92514]), atol=1e-5, rtol=0)
    loss.sum().backward()
    assert z.grad is None
    slope = 0.1 * sigma(0.15) * sigma(-0.15)  # β σ′(.15)
    torch.testing.assert_close(x.grad, slope * torch.tensor([-4.0, 0.5, -4.0]))  # two sites of weight two


def test_kto_without_kl_is_apo_zero_of_single_replies():
    """z = 0: 1 − σ(β Δ) of a desirable, σ(β Δ) of an undesirable reply."""
    loss = kto(CURRENT, REFERENCE, IDS, DESIRABLE, torch.zeros(2), beta=0.1).loss
    torch.testing.assert_close(loss, torch.tensor([1 - sigma(0.2), sigma(-0.1), 1 - sigma(0.2)]))


def test_bco_by_hand():
    """β = .1, δ = .05: −log σ(.2 − .05) = .6209; −log σ(.05 + .1) = .6209."""
    loss, statistics = bco(CURRENT, REFERENCE, IDS, DESIRABLE, torch.full((2,), 0.05), beta=0.1)
    torch.testing.assert_close(loss, torch.full((3,), math.log(1 + math.exp(-0.15))))
    assert statistics["preference_accuracy"].tolist() == [1, 1, 1]
    assert bco(CURRENT, REFERENCE, IDS, DESIRABLE, torch.full((2,), 0.3)).statistics["preference_accuracy"][0] == 0


def test_bco_shift_is_the_middle_of_the_classes():
    """Not the mean of all: desirable mean .375, undesirable −1, the middle −.3125; the mean would be −.0833."""
    reward, desirable = torch.tensor([0.5, 0.25, -1.0]), torch.tensor([1.0, 1.0, 0.0])
    assert bco_shift(reward, desirable).item() == -0.3125
    for one_class in (torch.ones(3), torch.zeros(3)):
        with pytest.raises(ValueError, match="one class"):
            bco_shift(reward, one_class)


def test_kto_kl_is_one_number_of_the_step():
    """max(0, mean), not the mean of maxima: (−1 + .5)/2 < 0 gives 0, where maxima would give .25."""
    x = torch.tensor([0.8, -0.2, 0.9], requires_grad=True)
    assert kto_kl(x).item() == pytest.approx(0.5)
    assert not kto_kl(x).requires_grad
    assert kto_kl(torch.tensor([-1.0, 0.5])).item() == 0
    with pytest.raises(ValueError, match="batch of one"):
        kto_kl(torch.tensor([0.3]))


@pytest.mark.parametrize("prompts", [[0, 1, 2], [0, 1], [5, 5, 1, 1], [3, 1, 3, 2, 1, 3], [0, 1, 0, 1, 2]])
def test_no_reply_is_matched_with_its_own_prompt(prompts: list[int]):
    """Also in odd batches, where reversing would leave the middle reply with itself."""
    prompt = torch.tensor(prompts)
    other = mismatched_replies(prompt)
    assert (prompt[other] != prompt).all()
    assert sorted(other.tolist()) == list(range(len(prompts)))


@pytest.mark.parametrize("prompts", [[0], [4, 4], [0, 0, 1]])
def test_replies_that_cannot_be_mismatched_are_refused(prompts: list[int]):
    with pytest.raises(ValueError, match="at most half"):
        mismatched_replies(torch.tensor(prompts))


@pytest.mark.parametrize("extreme", [-torch.inf, -50.0, 0.0])
@pytest.mark.parametrize("loss", [kto, bco])
def test_extremes_stay_finite(loss, extreme: float):
    for changed in ("policy", "reference", "both"):
        x = torch.where(IDS == 0, extreme, CURRENT) if changed != "reference" else CURRENT.clone()
        reference = torch.where(IDS == 0, extreme, REFERENCE) if changed != "policy" else REFERENCE
        got = loss(x.requires_grad_(), reference, IDS, DESIRABLE, torch.zeros(2))
        got.loss.sum().backward()
        assert got.loss.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("loss", [kto, bco])
def test_gradients_and_precision(loss):
    x = CURRENT.double().requires_grad_()
    facts = REFERENCE.double(), IDS, DESIRABLE, torch.full((2,), 0.2)
    assert torch.autograd.gradcheck(lambda y: loss(y, *facts).loss, (x,))
    assert loss(CURRENT.bfloat16(), REFERENCE.bfloat16(), *facts[1:]).loss.dtype == torch.float32
