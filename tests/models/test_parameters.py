"""Counts before training: by hand for small models, and the published example of a 768 × 768 matrix (a doctest)."""

from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.parameters import Count, count_parameters, describe_parameters
from tests.models.families import make


def test_counts_of_a_lora_by_name_of_module():
    """At rank 2, k 32→16 has 2 · 48 = 96 beside 512, down 64→32 has 2 · 96 = 192 beside 2048; three layers. The other
    names have nothing that trains, and the tied output matrix is no second one."""
    model = add_adapter(make("llama_tied"), AdapterSettings(rank=2, targets=("k_proj", "down_proj")))
    counts = {count.name: count for count in count_parameters(model)}
    assert counts["k_proj"] == Count(name="k_proj", trainable=3 * 96, total=3 * 512)
    assert counts["down_proj"] == Count(name="down_proj", trainable=3 * 192, total=3 * 2048)
    assert counts["embed_tokens"] == Count(name="embed_tokens", trainable=0, total=97 * 32)
    assert "lm_head" not in counts
    assert sum(c.trainable for c in counts.values()) == 3 * (96 + 192)
    assert sum(c.total for c in counts.values()) == sum(p.numel() for p in make("llama_tied").parameters())


def test_rows_of_tokens_count_as_the_embeddings_own():
    """Two rows of 32 numbers beside 97 · 32; k at rank 2 as above."""
    model = add_adapter(make("llama_tied"), AdapterSettings(rank=2, targets=("k_proj",)), token_ids=(5, 6))
    counts = {count.name: count for count in count_parameters(model)}
    assert counts["embed_tokens"] == Count(name="embed_tokens", trainable=64, total=97 * 32)
    assert describe_parameters(model).endswith(": embed_tokens 64 of 3,104, k_proj 288 of 1,536")


def test_the_line_of_a_model_without_adapter():
    """Embedding 97 · 32 = 3104; a layer 2 · 1024 + 2 · 512 + 3 · 2048 and two norms of 32, 9280; a last norm: 30976."""
    assert describe_parameters(make("llama_tied")) == "trains all 30,976 parameters"
    frozen = make("llama_tied")
    frozen.model.embed_tokens.weight.requires_grad_(False)
    assert describe_parameters(frozen).startswith("trains 27,872 parameters of 30,976 (90%): q_proj 3,072 of 3,072, ")


def test_the_line_of_a_prefix():
    """P · layers · 2 · kv_heads · head_dim = 4 · 3 · 2 · 2 · 8 = 384."""
    line = describe_parameters(add_adapter(make("llama_tied"), AdapterSettings(kind="prefix", prefix_tokens=4)))
    assert line == "trains 384 parameters beside 30,976 (1.24%): prefix 384"
