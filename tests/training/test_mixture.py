"""A weighted sum of losses as one loss."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch

from lydian.objectives.preference import dpo
from lydian.objectives.preference_free import chosen_nll, simpo
from lydian.training.mixture import mixture

IDS, PAIR, CHOSEN = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
CURRENT, REFERENCE = torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.0])


def test_sum_and_statistics():
    """dpo .5544 (h = .3) and chosen NLL 1: .5544 + .5·1. Each part's loss is reported before its weight."""
    both = mixture({functools.partial(dpo, beta=0.1): 1.0, chosen_nll: 0.5})
    loss, statistics = both(CURRENT, REFERENCE, IDS, PAIR, CHOSEN)
    torch.testing.assert_close(loss, torch.full((2,), 1.0544), atol=5e-5, rtol=0)
    assert statistics["dpo_loss"][0].item() == pytest.approx(0.5544, abs=5e-5)
    assert (statistics["chosen_nll_loss"][0], statistics["chosen_nll"][0]) == (1, 1)
    assert statistics["margin"][0].item() == pytest.approx(0.3)
    assert both.__name__ == "mixture(dpo, chosen_nll)"


def test_the_signature_is_the_union():
    """What a part needs first stands first; settings are bound and no longer shown."""
    assert list(inspect.signature(mixture({simpo: 1.0, functools.partial(dpo, beta=0.3): 1.0})).parameters) == [
        *("logprobs", "sequence", "pair", "is_chosen", "reference_logprobs")
    ]
    kinds = {p.kind for p in inspect.signature(mixture({simpo: 1.0})).parameters.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_data_reach_the_part_that_names_them():
    """By position or by name, with the order of the union, not of the part."""
    mixed = mixture({simpo: 0.0, dpo: 1.0})
    alone = dpo(CURRENT, REFERENCE, IDS, PAIR, CHOSEN).loss
    torch.testing.assert_close(mixed(CURRENT, IDS, PAIR, CHOSEN, REFERENCE).loss, alone)
    named = {"reference_logprobs": REFERENCE, "sequence": IDS, "pair": PAIR, "is_chosen": CHOSEN}
    torch.testing.assert_close(mixed(CURRENT, **named).loss, alone)
    with pytest.raises(TypeError, match="reference_logprobs"):
        mixed(CURRENT, IDS, PAIR, CHOSEN)


def test_clashing_statistics_are_named_after_their_part():
    """Rewards β Δ = .2 and β p̄ = −2 are different numbers; two forms of one function are told apart by a number."""
    statistics = mixture({dpo: 1.0, simpo: 1.0})(CURRENT, REFERENCE, IDS, PAIR, CHOSEN).statistics
    assert "margin" not in statistics
    assert statistics["dpo_reward_chosen"][0].item() == pytest.approx(0.2)
    assert statistics["simpo_reward_chosen"][0].item() == pytest.approx(-2)
    twice = {functools.partial(dpo, beta=0.1): 1.0, functools.partial(dpo, beta=0.2): 1.0}
    statistics = mixture(twice)(CURRENT, REFERENCE, IDS, PAIR, CHOSEN).statistics
    assert statistics["dpo_margin"][0].item() == pytest.approx(0.3)
    assert statistics["dpo_2_margin"][0].item() == pytest.approx(0.6)


def test_gradients_add_up():
    x = torch.tensor([-1.0, -3.0], requires_grad=True)
    mixture({dpo: 0.3, chosen_nll: 2.0})(x, REFERENCE, IDS, PAIR, CHOSEN).loss.sum().backward()
    y = torch.tensor([-1.0, -3.0], requires_grad=True)
    parts = 0.3 * dpo(y, REFERENCE, IDS, PAIR, CHOSEN).loss + 2 * chosen_nll(y, IDS, PAIR, CHOSEN).loss
    parts.sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_a_mixture_may_hold_a_mixture_but_not_nothing():
    inner = mixture({chosen_nll: 1.0})
    assert mixture({inner: 0.5})(CURRENT, IDS, PAIR, CHOSEN).loss.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="no losses"):
        mixture({})
