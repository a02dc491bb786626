"""Attention over trees: what it computes is what a dense mask gives, and it pays only for what is seen.

That logits and gradients of every family equal the plain path's is in test_policy.py, which runs through it.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lydian.data.forest import Forest, plant, site_weights
from lydian.data.sequence import Sequence
from lydian.models import tree_attention
from lydian.models.policy import Policy, dense_mask
from lydian.models.tree_attention import IMPLEMENTATION, TreeMask, attend, branches
from tests.models.families import make
from tests.models.test_policy import forests_of, group_of_answers


def forest_of(*texts: tuple[int, ...], row_tokens: int = 64) -> Forest:
    sequences = [
        Sequence(id=str(k), group="a", tokens=tokens, trained=(False,) + (True,) * (len(tokens) - 1))
        for k, tokens in enumerate(texts)
    ]
    (forest,) = plant(sequences, site_weights(sequences, "token_mean"), row_tokens=row_tokens)
    return forest


def states(forest: Forest, heads: int, num_before: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    rows, length = forest.tokens.shape
    return torch.randn(rows, heads, num_before + length, 8, dtype=dtype, requires_grad=True)


def dense(query, key, value, mask, scaling):
    repeated = [x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value)]
    weights = (query @ repeated[0].mT * scaling + mask).softmax(-1)
    return (weights @ repeated[1]).transpose(1, 2)


def test_branches_by_hand():
    """Answers (7, 2, 3), (7, 2, 9) and (8, 4) to (5, 6): the first with its prompt, then (9) under (5, 6, 7, 2), then
    (8, 4) under (5, 6)."""
    found = branches(forest_of((5, 6, 7, 2, 3), (5, 6, 7, 2, 9), (5, 6, 8, 4)))
    assert [(b.row, b.start, b.end, b.path.tolist()) for b in found] == [
        (0, 0, 5, []),
        (0, 5, 6, [0, 1, 2, 3]),
        (0, 6, 8, [0, 1]),
    ]


def test_long_branches_below_a_path_are_cut_by_hand(monkeypatch):
    """At 2 tokens: the answer (8, 4, 3) to (5, 6) in two, the second with the first in its path; a root stays whole."""
    monkeypatch.setattr(tree_attention, "MOST_OWN", 2)
    found = branches(forest_of((5, 6, 7, 2, 3), (5, 6, 8, 4, 3)))
    assert [(b.start, b.end, b.path.tolist()) for b in found] == [(0, 5, []), (5, 7, [0, 1]), (7, 8, [0, 1, 5, 6])]


@pytest.mark.parametrize("most_own", [2, 256])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("num_before", [0, 2])
def test_results_and_gradients_are_those_of_a_dense_mask(
    num_before: int, window: int | None, most_own: int, monkeypatch
):
    """In float64, over nine answers to three prompts in padded rows: at every token of every tree."""
    monkeypatch.setattr(tree_attention, "MOST_OWN", most_own)
    torch.manual_seed(0)
    for forest in forests_of(group_of_answers(), "shared"):
        query = states(forest, 4)
        key, value = (states(forest, 2, num_before) for _ in range(2))
        mask = dense_mask(forest, num_before, window, dtype=torch.float64)
        is_token = torch.zeros(forest.tokens.shape, dtype=torch.bool)
        for branch in branches(forest):
            is_token[branch.row, branch.start : branch.end] = True
        probe = torch.randn(is_token.sum(), 4, 8, dtype=torch.float64)
        expected = dense(query, key, value, mask, 0.3)[is_token]
        gradients = torch.autograd.grad(expected, (query, key, value), probe)
        found = attend(nn.Module(), query, key, value, TreeMask.of(forest, num_before, window), scaling=0.3)[0]
        torch.testing.assert_close(found[is_token], expected, atol=1e-12, rtol=0)
        again = torch.autograd.grad(found[is_token], (query, key, value), probe)
        for a, b in zip(again, gradients, strict=True):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_it_pays_for_what_is_seen():
    """Eight answers of 40 tokens to a prompt of 60 tokens: 60 · 61 / 2 + 8 · (40 · 60 + 40 · 41 / 2) = 27,590 pairs are
    seen, of 380² = 144,400. What is computed: (1 · 100² + 7 · 40 · 100) = 38,000."""
    prompt = tuple(range(5, 65))
    answers = [tuple((7 * k + t) % 50 + 70 for t in range(40)) for k in range(8)]
    forest = forest_of(*(prompt + answer for answer in answers), row_tokens=512)
    assert forest.tokens.shape == (1, 380)
    mask = TreeMask.of(forest)
    assert sum(b.queries.shape[1] * b.keys.numel() for b in mask.bundles) == 38_000
    assert [b.hidden is None for b in mask.bundles] == [True, False]  # the first with the prompt; the others


def test_branches_of_unequal_length_share_a_call_while_that_wastes_little():
    """Roots of 200 and 190 tokens together; one of 20 apart, being a tenth as long; many short ones together."""
    texts = [tuple((k + t) % 90 + 3 for t in range(n)) for k, n in enumerate((200, 190, 20))]
    sizes = [b.queries.shape for b in TreeMask.of(forest_of(*texts, row_tokens=410)).bundles]
    assert sizes == [(2, 200), (1, 20)]
    short = [tuple((k + t) % 90 + 3 for t in range(5 + k)) for k in range(10)]
    assert [b.queries.shape for b in TreeMask.of(forest_of(*short, row_tokens=200)).bundles] == [(10, 14)]


def test_bfloat16_is_computed_in_fp32():
    """Scores in bf16 would be off by 2⁻⁸; here only the inputs and the result are rounded."""
    torch.manual_seed(0)
    (forest,) = forests_of(group_of_answers()[:3], "shared")
    rounded = [states(forest, heads).to(torch.bfloat16) for heads in (4, 2, 2)]
    exact = attend(nn.Module(), *(x.double() for x in rounded), TreeMask.of(forest), scaling=3.0)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attend(nn.Module(), *rounded, TreeMask.of(forest), scaling=3.0)[0]
    assert found.dtype is torch.bfloat16
    assert (found == exact.to(torch.bfloat16)).float().mean() > 0.999


@pytest.mark.parametrize("option", ["softcap", "position_bias", "s_aux"])
def test_what_it_does_not_compute_is_refused(option: str):
    (forest,) = forests_of(group_of_answers()[:3], "shared")
    given = [states(forest, 2) for _ in range(3)]
    with pytest.raises(ValueError, match=option):
        attend(nn.Module(), *given, TreeMask.of(forest), **{option: 0.5})


def test_a_layer_that_reads_the_mask_as_numbers_gets_nan_and_then_a_dense_mask():
    """A model whose attention does not know the mask cannot be trained on wrong numbers unnoticed."""
    policy = Policy(make("llama"))
    assert (policy.layout, policy.attention) == ("shared", "trees")
    for implementation in ("sdpa", "eager"):
        policy.model.config._attn_implementation = implementation
        policy.attention = "trees"
        assert policy.logprobs(forests_of(group_of_answers(), "shared")[0])[0].isnan().all()
        assert (policy.find_layout(), policy.attention) == ("shared", "dense masks")


def test_a_saved_model_does_not_name_it(tmp_path):
    model = make("llama")
    Policy(model)
    assert model.config._attn_implementation == IMPLEMENTATION
    model.save_pretrained(tmp_path)
    assert IMPLEMENTATION not in (tmp_path / "config.json").read_text()
