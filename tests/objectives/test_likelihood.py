"""Likelihood losses against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lydian.objectives.likelihood import classification, dft, nll, unlikelihood


def slope(loss, at: torch.Tensor, *data: torch.Tensor, **settings) -> torch.Tensor:
    at = at.clone().requires_grad_()
    loss(at, *data, **settings).loss.sum().backward()
    assert at.grad is not None
    return at.grad


def test_nll_is_minus_the_logprob():
    at = torch.tensor([-1.0, -0.5])
    assert nll(at).loss.tolist() == [1.0, 0.5]
    assert slope(nll, at).tolist() == [-1.0, -1.0]


def test_unlikelihood_by_hand():
    """π = ¼ of a token to avoid: −log ¾ = .2877; its slope in log π is π/(1 − π) = ⅓, times c = 2. The other is nll."""
    at, ids, desirable = torch.tensor([0.25, 0.5]).log(), torch.tensor([0, 1]), torch.tensor([0.0, 1.0])
    loss, statistics = unlikelihood(at, ids, desirable, coef=2.0)
    torch.testing.assert_close(loss, torch.tensor([2 * 0.287682, math.log(2)]))
    torch.testing.assert_close(statistics["unlikelihood"], torch.tensor([0.287682, 0.0]))
    torch.testing.assert_close(slope(unlikelihood, at, ids, desirable, coef=2.0), torch.tensor([2 / 3, -1.0]))


def test_dft_pulls_a_token_by_its_probability():
    """−π log π with π held: at π = ¼ .3466, slope −¼; plain likelihood would pull with −1."""
    at = torch.tensor([0.25, 1.0]).log()
    torch.testing.assert_close(dft(at).loss, torch.tensor([0.346574, 0.0]))
    torch.testing.assert_close(slope(dft, at), torch.tensor([-0.25, -1.0]))
    torch.testing.assert_close(dft(at).statistics["nll"], -at)


def test_classification_by_hand():
    """Logits (log 3, 0): probabilities ¾, ¼. Label 0: log 4/3; label 1: log 4. One is right."""
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    loss, statistics = classification(logits, torch.tensor([1, 0]), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(loss, torch.tensor([math.log(4 / 3), math.log(4)]))
    assert statistics["class_accuracy"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("label", [-1.0, 2.0, 0.5, math.nan])
def test_a_label_that_is_no_class_is_refused(label: float):
    with pytest.raises(ValueError, match="classes 0 to 1"):
        classification(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([label]))
