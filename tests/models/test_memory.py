"""The memory plan against what torch really holds: tensors counted byte by byte, activations as autograd saves them."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from lydian.data.forest import plant, site_weights
from lydian.data.sequence import Sequence
from lydian.models import packed
from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.decode import Decoder, body_of
from lydian.models.load import load_model
from lydian.models.memory import (
    Held,
    Shape,
    activation_bytes,
    cache_token_bytes,
    decode_plan,
    decode_row_bytes,
    engine_plan,
    free_bytes,
    logprob_bytes,
    passes_plan,
    peak_bytes,
    prefill_token_bytes,
    published_bytes,
    reference_plan,
    shape_of,
    trained_plan,
)
from lydian.models.parameters import planned_model
from lydian.models.policy import Policy
from lydian.models.weights import weights_of
from lydian.training.optim import OptimiserSettings, make_optimiser

TINY = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4}
TINY |= {"vocab_size": 320, "max_position_embeddings": 512, "tie_word_embeddings": True}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**TINY, num_key_value_heads=4)),
    "grouped heads": lambda: LlamaForCausalLM(LlamaConfig(**TINY, num_key_value_heads=2)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**TINY, num_key_value_heads=2, head_dim=32)),
}
LORA = AdapterSettings(rank=4, alpha=8.0)


def size(tensors) -> int:
    """Bytes of all storages behind the tensors, each once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def by_name(plan: list[Held]) -> dict[str, int]:
    return {held.what: held.num_bytes for held in plan}


@pytest.mark.parametrize("adapter", [None, LORA], ids=["all weights", "lora"])
def test_weights_gradients_moments_reference_and_published_version_are_exact(adapter: AdapterSettings | None):
    """Planned from the tiny model's configuration; held by the real model after one AdamW step. AdamW's step counters,
    4 bytes a tensor, are left out on both sides."""
    plan = by_name(trained_plan(planned_model("tiny", adapter), "policy"))
    model = load_model("tiny", adapter=adapter).model
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = make_optimiser(trained, OptimiserSettings(learning_rate=1e-3))
    model(torch.tensor([[3, 4, 5]])).logits.sum().backward()
    optimiser.step()
    assert plan["weights"] == size(model.parameters())
    assert plan["gradients"] == size(p.grad for p in trained)
    moments = (state[name] for state in optimiser.state.values() for name in ("exp_avg", "exp_avg_sq"))
    assert plan["moments"] == size(moments)
    assert by_name(reference_plan(model))["trained weights"] == size([p.detach().clone() for p in trained])
    live = {p.data_ptr() for p in model.parameters()}
    new = [t for t in weights_of(model, 1).tensors.values() if t.data_ptr() not in live]
    assert published_bytes(planned_model("tiny", adapter)) == size(new)


@pytest.mark.parametrize("is_packed", [True, False])
def test_engine_is_exact(is_packed: bool, monkeypatch):
    """Weights, a second copy of a tied output matrix where it is packed, keys and values of all slots."""
    monkeypatch.setattr(packed, "_FEWEST_WEIGHTS", 1 if is_packed else 1 << 30)
    model = MODELS["grouped heads"]()
    plan = by_name(engine_plan(model, rows=5, capacity=20, chunk=8))
    body = body_of(model.eval().requires_grad_(False))
    tensors = [x for linear in body._linears for x in (linear._weight, linear._bias) if x is not None]
    packed_bytes = sum(x.numel() * 4 for x in tensors if x.is_mkldnn)  # such a tensor shows no storage
    held = size(chain(body._parameters.values(), (x for x in tensors if not x.is_mkldnn))) + packed_bytes
    assert held == plan["weights"] + plan.get("packed output matrix", 0)
    assert ("packed output matrix" in plan) is is_packed
    decoder = Decoder(body, num_slots=5, capacity=20)
    decoder.prefill([[3, 4]])
    assert plan["keys and values"] == size(chain.from_iterable(decoder._slots._buffers))


def saved_bytes(policy: Policy, *, num: int, prompt: int, reply: int) -> tuple[int, int]:
    """Bytes that a pass over `num` replies to one prompt keeps for the backward pass, parameters left out; and its
    tokens."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda n: torch.randint(5, 300, (n,), generator=generator).tolist()  # noqa: E731
    question = draw(prompt)
    trained = (False,) * prompt + (True,) * reply
    sequences = [Sequence(id=str(k), group="a", tokens=(*question, *draw(reply)), trained=trained) for k in range(num)]
    (forest,) = plant(sequences, site_weights(sequences, "token_mean"), layout=policy.layout)
    own = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own and tensor.dtype is not None:
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.logprobs(forest)
    return size(kept), forest.tokens.numel()


@pytest.mark.parametrize("is_bfloat16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("is_frozen", [False, True], ids=["all weights", "lora"])
@pytest.mark.parametrize("name", MODELS)
def test_activations_are_what_autograd_saves(name: str, is_frozen: bool, is_bfloat16: bool):
    """Within 10 %; with bf16, copies of the layers' matrices, 2 bytes a number, are among what is saved."""
    torch.manual_seed(0)
    model = MODELS[name]()
    copies = 2 * sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n)
    if is_frozen:
        model = add_adapter(model, LORA)
    dtype = torch.bfloat16 if is_bfloat16 else torch.float32
    measured, tokens = saved_bytes(Policy(model, layout="shared", compute_dtype=dtype), num=8, prompt=20, reply=40)
    planned = activation_bytes(shape_of(model.config), tokens=tokens, is_bfloat16=is_bfloat16, is_frozen=is_frozen)
    assert planned + copies * is_bfloat16 == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("num_recomputed", [1, 2, 3])
def test_activations_of_recomputed_layers(num_recomputed: int):
    """Kept: each recomputed layer's input, the other layers' activations, and last states. Where all are recomputed,
    one layer's own activations come on top in the backward pass."""
    torch.manual_seed(0)
    policy = Policy(MODELS["llama"](), layout="shared")
    policy.recompute(num_recomputed)
    measured, tokens = saved_bytes(policy, num=8, prompt=20, reply=40)
    shape = shape_of(policy.model.config)
    assert shape.layers == 3
    one_layer = activation_bytes(replace(shape, layers=1), tokens=tokens) - 12 * tokens * shape.width
    planned = activation_bytes(shape, tokens=tokens, num_recomputed=num_recomputed)
    assert planned - one_layer * (num_recomputed == 3) == pytest.approx(measured, rel=0.1)


def test_log_probabilities_by_hand():
    """V = 10, d = 2, 3 tokens: 4 · 30 + 4 · 3 · 30 + 4 · 20; ten million tokens: a chunk of 2²⁴ numbers, not 10⁸, and
    parts of 2²¹."""
    shape = Shape(layers=1, width=2, query_width=2, key_width=2, inner=4, vocabulary=10)
    assert logprob_bytes(shape, tokens=3) == 560
    assert logprob_bytes(shape, tokens=10**7) == 4 * 2**24 + 12 * 2**21 + 80


def test_decode_plan_keeps_to_its_budget_and_wastes_less_than_a_row():
    """For budgets from nothing to plenty; more budget never gives fewer rows."""
    shape = Shape(layers=2, width=32, query_width=32, key_width=16, inner=64, vocabulary=97)
    row, token = decode_row_bytes(shape, 50, 4), prefill_token_bytes(shape, 50, 4)
    before = 0
    for budget in (0, row, row + token, 3 * row, 10 * row, 1000 * row):
        rows, chunk = decode_plan(shape, capacity=50, budget=budget, itemsize=4, most_tokens=64)
        assert rows >= before and 1 <= chunk <= 64
        if rows:
            assert budget - row < rows * row + chunk * token <= budget
        before = rows
    assert (rows, chunk) == ((1000 * row - 64 * token) // row, 64)
    assert decode_plan(shape, capacity=50, budget=row, itemsize=4, most_tokens=64)[0] == 0


def test_peak_is_always_and_the_larger_phase():
    plan = [
        Held(what="a", of="x", num_bytes=10),
        Held(what="b", of="x", num_bytes=7, during="updates"),
        Held(what="c", of="x", num_bytes=5, during="sampling"),
        Held(what="d", of="x", num_bytes=4, during="sampling"),
    ]
    assert peak_bytes(plan) == 19


def test_cache_of_a_token_by_hand():
    """SmolLM2-135M: 30 layers, 3 key heads of 64, keys and values, 4 bytes: 46,080."""
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3
    )
    assert cache_token_bytes(shape_of(config), 4) == 46_080


def test_free_memory_is_a_sensible_number():
    assert 1 << 20 < free_bytes(torch.device("cpu")) < 1 << 50


def test_passes_leave_gaps_in_a_cpu_s_heap(monkeypatch):
    """A quarter of the activations, which a GPU does not leave; bf16 copies are 2 bytes for each of 50 numbers."""
    shape = Shape(layers=1, width=2, query_width=2, key_width=2, inner=4, vocabulary=10)
    settings = {"tokens": 3, "num_parameters": 50, "is_frozen": False}
    activations = activation_bytes(shape, tokens=3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    planned = {"activations of 3 tokens": activations, "gaps in the heap": activations // 4, "logits of a chunk": 560}
    plan = passes_plan(shape, is_bfloat16=False, **settings)
    assert by_name(plan) == planned
    assert {h.what for h in plan if h.during == "always"} == {"gaps in the heap"}
    assert by_name(passes_plan(shape, is_bfloat16=True, **settings))["bfloat16 copies"] == 100
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "gaps in the heap" not in by_name(passes_plan(shape, is_bfloat16=False, **settings))
