"""Padded tensors give what flat ones give, entry by entry, and reduce as the forest's weights do."""

from __future__ import annotations

import math

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from lydian.compat.padded import padded, reduce
from lydian.data.forest import Normaliser, site_weights
from lydian.data.sequence import Pair, Sequence
from lydian.errors import InputError
from lydian.objectives.loss import Loss
from lydian.objectives.policy_gradient import clip, gspo, reinforce
from lydian.objectives.preference import dpo

MASK = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0], [1, 0, 0]])
ROW, COLUMN = MASK.bool().nonzero().T


def draw(seed: int) -> Tensor:
    """[4, 3] log-probabilities with NaN where the mask is false."""
    values = -torch.rand(4, 3, generator=torch.Generator().manual_seed(seed))
    return values.masked_fill(~MASK.bool(), math.nan)


def test_padded_equals_flat_and_gradients_flow():
    """Sites in row order; statistics likewise; masked entries have loss 0 and gradient exactly 0 in spite of NaN."""
    logprobs, proximal = draw(0).requires_grad_(), draw(1)
    advantage = torch.tensor([[1.0], [-2.0], [5.0], [0.5]])
    got = padded(clip)(mask=MASK, logprobs=logprobs, proximal_logprobs=proximal, advantage=advantage, clip_low=0.1)
    flat = draw(0)[ROW, COLUMN].requires_grad_()
    wanted = clip(flat, proximal[ROW, COLUMN], advantage[ROW, 0], clip_low=0.1)
    assert got.loss.shape == (4, 3) and got.statistics.keys() == wanted.statistics.keys()
    for padded_values, values in ((got.loss, wanted.loss), (got.statistics["ratio"], wanted.statistics["ratio"])):
        torch.testing.assert_close(padded_values[ROW, COLUMN], values, rtol=0, atol=0)
        assert (padded_values[~MASK.bool()] == 0).all()
    got.loss.sum().backward()
    wanted.loss.sum().backward()
    torch.testing.assert_close(logprobs.grad[ROW, COLUMN], flat.grad, rtol=0, atol=0)
    assert (logprobs.grad[~MASK.bool()] == 0).all()


def test_rows_are_sequences():
    """Rows 0 and 3 are a pair, rows 1 and 2 another; row 2 has no site, so its sum is 0.

    Sums of log π − log π_ref: row 0: −1 − 2 = −3; row 3: −4; margin .5·(−3 + 4) = .5. Rows 1 and 2: −.5 − .5 = −1 for
    the chosen, 0 for the rejected; margin −.5."""
    logprobs = torch.tensor([[-1.0, -2.0, 9.0], [9.0, -0.5, -0.5], [9.0, 9.0, 9.0], [-4.0, 9.0, 9.0]])
    facts = {"pair": torch.tensor([7.0, 8.0, 8.0, 7.0]), "is_chosen": torch.tensor([1.0, 1.0, 0.0, 0.0])}
    got = padded(dpo)(mask=MASK, logprobs=logprobs, reference_logprobs=torch.zeros(4, 3), beta=0.5, **facts)
    margin = torch.tensor([[0.5, 0.5, 0], [0, -0.5, -0.5], [0, 0, 0], [0.5, 0, 0]])
    torch.testing.assert_close(got.statistics["margin"], margin)
    torch.testing.assert_close(got.loss[0, 0].item(), math.log1p(math.exp(-0.5)))


def test_sequence_ratios_use_their_own_row():
    """Row 0: exp((log 2 + log ½)/2) = 1; row 1: log-ratios log 4 and 0, s = 2; row 3: 3."""
    logprobs = torch.tensor([[2.0, 0.5, 9.0], [9.0, 4.0, 1.0], [9.0, 9.0, 9.0], [3.0, 9.0, 9.0]]).log()
    given = {"logprobs": logprobs, "proximal_logprobs": torch.zeros(4, 3), "advantage": torch.ones(4, 1)}
    got = padded(gspo)(mask=MASK, **given, clip_low=9.0, clip_high=9.0)
    torch.testing.assert_close(-got.loss, torch.tensor([[1.0, 1, 0], [0, 2, 2], [0, 0, 0], [3, 0, 0]]))


def test_a_vocabulary_stays_last():
    """An objective of logits [n, v] takes [batch, time, v]."""

    def first_logit(logits: Float[Tensor, "n v"]) -> Loss:
        return Loss(logits[:, 0], {})

    logits = torch.arange(24.0).reshape(4, 3, 2)
    assert padded(first_logit)(mask=MASK, logits=logits).loss[1].tolist() == [0.0, 8.0, 10.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(4)}, r"padded\(reinforce\): mask: got shape \[4\].*\[batch, time\]"),
        ({"logprobs": torch.zeros(4, 2)}, r"logprobs: got shape \[4, 2\].*expected shape \[4, 3\] or \[4, 1\]"),
        ({"advantage": torch.zeros(4)}, r"advantage: got shape \[4\]"),
        ({"advantage": torch.zeros(1, 1)}, r"advantage: got shape \[1, 1\]"),
        ({"advantage": 1.0}, r"advantage: got shape \[\] \(float\)"),
        ({"advantages": torch.zeros(4, 1)}, "got advantages.*Did you mean 'advantage'"),
        ({"sequence": torch.zeros(4, 3)}, "a row of the mask is a sequence"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], message: str):
    given = {"mask": MASK, "logprobs": torch.zeros(4, 3), "advantage": torch.zeros(4, 1)}
    with pytest.raises(InputError, match=message):
        padded(reinforce)(**given | change)


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match="no advantage"):
        padded(reinforce)(mask=MASK, logprobs=torch.zeros(4, 3))
    with pytest.raises(InputError, match=r"pair: got shape \[3\].*expected shape \[4\]"):
        padded(dpo)(
            mask=MASK,
            logprobs=torch.zeros(4, 3),
            reference_logprobs=torch.zeros(4, 3),
            pair=torch.zeros(3),
            is_chosen=torch.zeros(4),
        )


LOSS = torch.tensor([[1.0, 3.0, math.nan], [math.nan, 5.0, 7.0], [math.nan, math.nan, math.nan], [9.0, 0, 0]])


@pytest.mark.parametrize(
    ("normaliser", "value"),
    [("token_mean", 25 / 5), ("sequence_mean", 17 / 3), ("constant", 25 / 12), ("pair_mean", (4 / 2 + 21 / 3) / 2)],
)
def test_normalisers_by_hand(normaliser: Normaliser, value: float):
    """Rows sum to 4, 12, nothing and 9 over 2, 2, 0 and 1 sites; the third row is no sequence.

    token_mean 25/5; sequence_mean (2 + 6 + 9)/3; constant 4: 25/(3·4). Pairs: rows 0 and 2, rows 1 and 3: 4 over 2
    sites and 21 over 3, the mean of two."""
    pair = torch.tensor([1.0, 2.0, 1.0, 2.0])
    torch.testing.assert_close(reduce(LOSS, MASK, normaliser, 4.0, pair=pair).item(), value, rtol=1e-6, atol=0)


@pytest.mark.parametrize("normaliser", ["token_mean", "sequence_mean", "constant", "pair_mean"])
def test_reduce_agrees_with_the_forests_weights(normaliser: Normaliser):
    """The gradient of the reduced loss is each site's weight."""
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0]]).bool()

    def sequence(k: int) -> Sequence:
        return Sequence(id=str(k), group=str(k // 2), tokens=(1, 2, 3, 4), trained=(False, *mask[k].tolist()))

    items = [Pair(chosen=sequence(0), rejected=sequence(1)), Pair(chosen=sequence(2), rejected=sequence(3))]
    weights = site_weights(items, normaliser, constant=7.0)
    loss = torch.ones(4, 3, requires_grad=True)
    reduce(loss, mask, normaliser, 7.0, pair=torch.tensor([0.0, 0.0, 1.0, 1.0])).backward()
    torch.testing.assert_close(loss.grad, torch.tensor([[weights[str(k)]] for k in range(4)]) * mask)


def test_a_mask_without_sites_gives_zero():
    loss = torch.full((2, 2), math.nan, requires_grad=True)
    total = reduce(loss, torch.zeros(2, 2), "sequence_mean")
    total.backward()
    assert total.item() == 0 and (loss.grad == 0).all()


@pytest.mark.parametrize(
    ("normaliser", "message"),
    [("constant", "a number > 0"), ("pair_mean", "pair"), ("mean", "one of token_mean, sequence_mean")],
)
def test_reduce_says_what_it_lacks(normaliser: Normaliser, message: str):
    with pytest.raises(InputError, match=message):
        reduce(torch.zeros(4, 3), MASK, normaliser)
    with pytest.raises(InputError, match=r"reduce: loss: got shape \[4, 1\]"):
        reduce(torch.zeros(4, 1), MASK, normaliser)
