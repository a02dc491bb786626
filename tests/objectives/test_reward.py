"""Losses of reward models against numbers worked by hand. Those on pairs also stand in test_preference_pairs."""

from __future__ import annotations

import math

import pytest
import torch
from jaxtyping import TypeCheckError

from lydian.objectives.reward import (
    aggregate_steps,
    bradley_terry,
    bradley_terry_margin,
    plackett_luce,
    process_reward,
    score_regression,
)

PAIR, CHOSEN = torch.zeros(2), torch.tensor([1.0, 0.0])
IDS = torch.tensor([0, 1, 1, 0, 1])
SCORE = torch.tensor([9.0, -9.0, -9.0, 1.2, 0.2])  # last sites: 1.2 and 0.2


def test_bradley_terry_by_hand():
    """r 1.2 and .2: −log σ(1) = .3133, read at last sites, at every site of the pair; c = .01 adds .01·1.4² = .0196."""
    loss, statistics = bradley_terry(SCORE, IDS, PAIR, CHOSEN)
    torch.testing.assert_close(loss, torch.full((5,), 0.3133), atol=5e-5, rtol=0)
    assert {name: round(values[1].item(), 4) for name, values in statistics.items()} == {
        "score_chosen": 1.2,
        "score_rejected": 0.2,
        "margin": 1.0,
        "preference_accuracy": 1.0,
    }
    centred = bradley_terry(SCORE, IDS, PAIR, CHOSEN, centring_coef=0.01).loss
    torch.testing.assert_close(centred - loss, torch.full((5,), 0.0196))


def test_only_last_sites_learn():
    """σ(−1) = .26894 for the pair, −/+; the weights 1/5 of pair_mean undo the five sites."""
    x = SCORE.clone().requires_grad_()
    (bradley_terry(x, IDS, PAIR, CHOSEN).loss / 5).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 0.0, 0.0, -0.26894, 0.26894]), atol=5e-6, rtol=0)


def test_centring_is_of_the_sum():
    """r = (3, −3): (3 − 3)² = 0, where squares of each would give 18."""
    facts = torch.tensor([3.0, -3.0]), torch.tensor([0, 1]), PAIR, CHOSEN
    assert bradley_terry(*facts, centring_coef=1.0).loss[0] == bradley_terry(*facts).loss[0]


def test_margin_by_hand():
    """m = .5: −log σ(1 − .5) = .4741; accuracy is of the scores, before the margin."""
    loss, statistics = bradley_terry_margin(SCORE, IDS, PAIR, CHOSEN, torch.tensor([0.5, 0.5]))
    assert loss[0].item() == pytest.approx(0.4741, abs=5e-5)
    assert statistics["margin"][0].item() == pytest.approx(1.0)


def test_plackett_luce_by_hand():
    """Scores 2, 1, 0 in their order: log(e² + e + 1) − 2 = .4076; log(e + 1) − 1 = .3133; sum .7209.
    Ranked the other way round: log(e² + e + 1) − 0 + log(e² + e) − 1 = 2.4076 + 1.3133 = 3.7209."""
    score, ids = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([0, 1, 2])
    right = plackett_luce(score, ids, torch.zeros(3), torch.tensor([2.0, 1.0, 3.0]))
    wrong = plackett_luce(score, ids, torch.zeros(3), torch.tensor([2.0, 3.0, 1.0]))
    torch.testing.assert_close(right.loss, torch.full((3,), 0.7209), atol=5e-5, rtol=0)
    torch.testing.assert_close(wrong.loss, torch.full((3,), 3.7209), atol=5e-5, rtol=0)
    assert (right.statistics["preference_accuracy"][0], wrong.statistics["preference_accuracy"][0]) == (1, 0)


def test_plackett_luce_of_two_is_bradley_terry_and_rankings_do_not_mix():
    """Rankings 3 and 8, interleaved; only the order of ranks matters. In the ranking of three, scores 2, 1, 3
    stand on ranks 1, 2, 3: one of three pairs is in order."""
    ids, pair = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([8.0, 3.0, 8.0, 3.0, 3.0])
    score, rank = torch.tensor([1.2, 2.0, 0.2, 1.0, 3.0]), torch.tensor([0.0, 1.0, 7.0, 2.0, 3.0])
    loss, statistics = plackett_luce(score, ids, pair, rank)
    assert loss[0] == loss[2] == pytest.approx(math.log(1 + math.exp(-1)))
    assert statistics["preference_accuracy"].tolist() == pytest.approx([1, 1 / 3, 1, 1 / 3, 1 / 3])


def test_plackett_luce_refuses_ties_and_single_sequences():
    score, ids = torch.zeros(2), torch.tensor([0, 1])
    for pair, rank in (([0.0, 0.0], [1.0, 1.0]), ([0.0, 1.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match="ties"):
            plackett_luce(score, ids, torch.tensor(pair), torch.tensor(rank))


def test_score_regression_by_hand():
    """Last sites .5 against 2 and 3 against NaN: 2.25, and exactly nothing. Targets at other sites are not read."""
    x = torch.tensor([7.0, 3.0, 0.5], requires_grad=True)
    target = torch.tensor([99.0, torch.nan, 2.0])
    loss, statistics = score_regression(x, torch.tensor([0, 1, 0]), target)
    assert loss.tolist() == [2.25, 0.0, 2.25]
    assert statistics["score_error"].tolist() == [1.5, 0.0, 1.5]
    (loss * torch.tensor([0.5, 1.0, 0.5])).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.0, -3.0]


def test_process_reward_by_hand():
    """Labels (−100, 1, NaN, 0, .25) at logits (∞, 2, −3, 2, 0): 0; log(1 + e^−2) = .1269; 0;
    log(1 + e²) = 2.1269; log 2.
    Ignored sites have exactly no gradient; the others σ(r) − label."""
    x = torch.tensor([torch.inf, 2.0, -3.0, 2.0, 0.0], requires_grad=True)
    loss, statistics = process_reward(x, torch.tensor([-100.0, 1.0, torch.nan, 0.0, 0.25]))
    expected = torch.tensor([0.0, 0.126928, 0.0, 2.126928, math.log(2)])
    torch.testing.assert_close(loss.detach(), expected, atol=1e-6, rtol=0)
    loss.sum().backward()
    assert x.grad is not None and x.grad[0] == 0 and x.grad[2] == 0
    torch.testing.assert_close(x.grad, torch.tensor([0.0, -0.119203, 0.0, 0.880797, 0.25]), atol=1e-6, rtol=0)
    assert statistics["is_labelled"].tolist() == [0, 1, 0, 1, 1]
    assert statistics["step_right"].tolist() == [0, 1, 0, 0, 1]


def test_a_strange_label_is_refused():
    with pytest.raises(ValueError, match="outside"):
        process_reward(torch.zeros(1), torch.tensor([-1.0]))
    assert process_reward(torch.zeros(1), torch.tensor([-1.0]), ignored=-1.0).loss.item() == 0


@pytest.mark.parametrize("extreme", [-50.0, 50.0])
def test_extremes_stay_finite(extreme: float):
    x = torch.tensor([extreme, 0.0], requires_grad=True)
    ids, rank = torch.tensor([0, 1]), torch.tensor([1.0, 2.0])
    target = torch.tensor([0.0, 1.0])
    for got in (plackett_luce(x, ids, PAIR, rank), process_reward(x, target), score_regression(x, ids, target)):
        x.grad = None
        got.loss.sum().backward()
        assert got.loss.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_gradients_and_precision():
    ids, rank = torch.tensor([0, 1, 2]), torch.tensor([1.0, 2.0, 3.0])
    x = torch.tensor([0.3, 1.1, -0.7], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0.25, torch.nan, 1.0], dtype=torch.float64)
    for loss in (
        lambda y: plackett_luce(y, ids, torch.zeros(3), rank),
        lambda y: process_reward(y, target),
        lambda y: score_regression(y, ids, target),
    ):
        assert torch.autograd.gradcheck(lambda y, loss=loss: loss(y).loss, (x,))
        assert loss(x.detach().bfloat16()).loss.dtype in (torch.float32, torch.float64)
    assert process_reward(torch.zeros(1, dtype=torch.bfloat16), torch.ones(1)).loss.dtype == torch.float32


def test_aggregation_must_be_named():
    """(.9, .5, .8) → min .5, last .8, product .36, mean .7333; another reply between them changes nothing."""
    score, ids = torch.tensor([0.9, 0.1, 0.5, 0.8]), torch.tensor([0, 2, 0, 0])
    for how, expected in (("min", 0.5), ("last", 0.8), ("product", 0.36), ("mean", 0.7333)):
        first, none, other = aggregate_steps(score, ids, 3, how).tolist()
        assert (first, other) == pytest.approx((expected, 0.1), abs=5e-5)
        assert math.isnan(none)  # a reply without steps has no score
    with pytest.raises((ValueError, TypeCheckError), match="average"):
        aggregate_steps(score, ids, 3, "average")  # type: ignore[arg-type]
