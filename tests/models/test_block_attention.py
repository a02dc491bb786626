"""Attention by FlexAttention, as a GPU computes it: the mask against the dense one, and a model's log-probabilities
through it, on a CPU. There it has no backward pass."""

from __future__ import annotations

import pytest
import torch

from lydian.models import tree_attention
from lydian.models.block_attention import block_mask
from lydian.models.policy import Policy, dense_mask
from tests.models.families import FAMILIES, make
from tests.models.test_policy import forests_of, group_of_answers
from tests.models.test_prefix import prefixed
from tests.models.test_tree_attention import forest_of


@pytest.fixture
def on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies on a CPU attend as on a GPU; nothing is compiled."""
    monkeypatch.setattr(tree_attention, "SPARSE_MASKS", {"cpu": {"blocks": block_mask}})


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("num_before", [0, 2])
def test_pairs_are_those_of_the_dense_mask(num_before: int, window: int | None):
    for forest in forests_of(group_of_answers(), "shared"):
        (rows, length), mask = forest.tokens.shape, block_mask(forest, num_before, window)
        index = [torch.arange(n) for n in (rows, 1, length, num_before + length)]
        seen = mask.mask_mod(*torch.meshgrid(*index, indexing="ij"))
        expected = dense_mask(forest, num_before, window, dtype=torch.float32) == 0
        assert torch.equal(seen, expected)


def texts_of(*lengths: int) -> list[tuple[int, ...]]:
    """Five texts that share no start."""
    return [tuple((7 * k + t) % 90 + 3 for t in range(lengths[k % len(lengths)])) for k in range(5)]


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("num_before", [0, 50])
def test_blocks_are_those_with_a_pair_that_is_seen(num_before: int, window: int | None):
    """Texts of 100 and 70 tokens, alone and below a prompt of 30, in rows of lengths that 128 does not divide."""
    for start in ((), tuple(range(60, 90))):
        forest = forest_of(*(start + text for text in texts_of(100, 70)), row_tokens=600)
        seen = dense_mask(forest, num_before, window, dtype=torch.float32)[:, 0] == 0
        rows, queries, keys = seen.shape
        assert queries % 128 and queries > 256
        blocks = torch.zeros(rows, -(-queries // 128) * 128, -(-keys // 128) * 128, dtype=torch.bool)
        blocks[:, :queries, :keys] = seen
        expected = blocks.view(rows, blocks.shape[1] // 128, 128, -1, 128).any(4).any(2)
        assert torch.equal(block_mask(forest, num_before, window).to_dense()[:, 0].bool(), expected)


def test_blocks_that_nobody_sees_are_skipped():
    """Five texts of 128 tokens: of 25 blocks of 128 × 128 pairs the five on the diagonal are seen. Four answers of 128
    to a prompt of 128: the diagonal and the prompt's column, 5 + 4."""
    texts = texts_of(128)
    answers = [texts[0] + text for text in texts[1:]]
    masks = [block_mask(forest_of(*sequences, row_tokens=640), 0, None) for sequences in (texts, answers)]
    assert [mask.kv_num_blocks.sum() + mask.full_kv_num_blocks.sum() for mask in masks] == [5, 9]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("family", [*(family for family in FAMILIES if family != "gpt2"), "prefix"])
def test_log_probabilities_are_those_of_dense_masks(family: str, dtype: torch.dtype, tolerance: float, on_blocks: None):
    model = prefixed("llama") if family == "prefix" else make(family)
    with torch.compiler.set_stance("force_eager"):
        policy = Policy(model, compute_dtype=dtype)
        assert (policy.layout, policy.attention) == ("shared", "blocks")
        for forest in forests_of(group_of_answers(), "shared"):
            with torch.no_grad():
                found = policy.logprobs(forest)[0]
                policy.attention = "dense masks"
                torch.testing.assert_close(found, policy.logprobs(forest)[0], atol=tolerance, rtol=0)
            policy.attention = "blocks"


def test_where_it_cannot_run_masks_are_dense(on_blocks: None, monkeypatch: pytest.MonkeyPatch):
    def fails(*_args: object, **_options: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(tree_attention, "flex_attention_forward", fails)
    policy = Policy(make("llama"))
    assert (policy.layout, policy.attention) == ("shared", "dense masks")
    assert policy.refused == {"blocks": "RuntimeError: no compiler"}


def test_a_model_that_reads_its_mask_gets_a_dense_one(on_blocks: None):
    """GPT-2 asks a mask for its number of dimensions, which a block mask does not have."""
    policy = Policy(make("gpt2"))
    assert (policy.layout, policy.attention) == ("shared", "dense masks")
