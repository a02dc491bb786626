"""What training and sampling hold in memory, planned from configurations before anything runs.

Weights, gradients, moments and the cache are exact. Activations are what torch keeps for the backward pass of
Llama-like models (RMSNorm, rotary attention, gated MLP); for others an estimate. Symbols of the equations:

    L layers, d width of the residual stream, q width of all query heads, k width of all key heads, m inner width of
    the MLP, V vocabulary, T tokens of one pass, b bytes of a number
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from lydian.models.allocator import freed_bytes
from lydian.models.llama_decode import cache_dtype
from lydian.models.packed import is_worth_packing
from lydian.objectives.logprobs import CACHE_ELEMENTS, CHUNK_ELEMENTS

FP32 = 4
"""Bytes of a number of gradients, moments and logits."""

LOGIT_COPIES = 3
"""Logits, their probabilities and what drawing makes of them, at the same time."""

PART_COPIES = 3
"""What log-probabilities and their backward pass make of logits in fp32, at the same time."""

HEAP_GAPS = 0.25
"""Of a pass's activations, what a CPU's heap holds more: gaps between what lives on, where no block of the next pass
fits, and which do not go back to the system either. Measured: see the plans beside peaks in docs/performance.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a model that memory depends on: L, d, q, k, m, V, and whether heads are normed (Qwen3)."""

    layers: int
    width: int
    query_width: int
    key_width: int
    inner: int
    vocabulary: int
    has_head_norms: bool = False


def shape_of(config: PreTrainedConfig) -> Shape:
    """Reads a transformers configuration."""
    config = config.get_text_config()
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Shape(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        query_width=heads * head_dim,
        key_width=(getattr(config, "num_key_value_heads", None) or heads) * head_dim,
        inner=getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size,
        vocabulary=config.vocab_size,
        has_head_norms=config.model_type.startswith(("qwen3", "gemma3")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One thing in memory.

    what       weights, gradients, activations, …
    of         whose: policy, engine, reference, teacher, …
    num_bytes  its size
    during     always, or only while weights are updated, or only while completions are sampled
    """

    what: str
    of: str
    num_bytes: int
    during: Literal["always", "updates", "sampling"] = "always"


def peak_bytes(plan: Iterable[Held], *, is_kept: bool = False) -> int:
    """The most that is held at one time: what always is, and the larger of updating and sampling.

    is_kept  freed memory stays with the process (`allocator`): the two add up, since blocks of the one seldom fit where
             the other's were

    >>> sizes = (("always", 5), ("updates", 3), ("sampling", 2), ("updates", 1))
    >>> plan = [Held(what="", of="", num_bytes=n, during=during) for during, n in sizes]
    >>> peak_bytes(plan), peak_bytes(plan, is_kept=True)  # 5 + max(3 + 1, 2), 5 + 3 + 1 + 2
    (9, 11)
    """
    sums = {"always": 0, "updates": 0, "sampling": 0}
    for held in plan:
        sums[held.during] += held.num_bytes
    together = sum if is_kept else max
    return sums["always"] + together((sums["updates"], sums["sampling"]))


def frozen_plan(model: nn.Module, of: str) -> list[Held]:
    """A model that never trains: its weights. The model may be on torch's `meta` device, without values."""
    return [Held(what="weights", of=of, num_bytes=_bytes(model.parameters()))]


def trained_plan(model: nn.Module, of: str, *, is_frozen_shared: bool = False) -> list[Held]:
    """A model under AdamW: weights; for each trained number 4 bytes of gradient and 2 · 4 bytes of moments.

    is_frozen_shared  its frozen weights are another model's, and counted there
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    trained = FP32 * sum(p.numel() for p in parameters)
    return [
        Held(what="weights", of=of, num_bytes=_bytes(parameters if is_frozen_shared else model.parameters())),
        Held(what="moments", of=of, num_bytes=2 * trained),
        Held(what="gradients", of=of, num_bytes=trained, during="updates"),
    ]


def reference_plan(model: nn.Module) -> list[Held]:
    """A reference policy: a copy of what trains, and a second one of the current values while the first is used (but
    for fresh low-rank adapters, which are switched off instead)."""
    trained = _bytes(p for p in model.parameters() if p.requires_grad)
    return [
        Held(what="trained weights", of="reference", num_bytes=trained),
        Held(what="current weights aside", of="reference", num_bytes=trained, during="updates"),
    ]


def passes_plan(
    shape: Shape, *, tokens: int, num_parameters: int, is_bfloat16: bool, is_frozen: bool, num_recomputed: int = 0
) -> list[Held]:
    """Forward and backward passes of T tokens: activations, the heap's gaps, logits, and the weights in bf16.

    num_parameters  of the whole model; for the other settings see `activation_bytes`
    """
    activations = activation_bytes(
        shape, tokens=tokens, is_bfloat16=is_bfloat16, is_frozen=is_frozen, num_recomputed=num_recomputed
    )
    recomputed = f", {num_recomputed} of {shape.layers} layers recomputed" if num_recomputed else ""
    sizes = {
        f"activations of {tokens:,} tokens{recomputed}": activations,
        "logits of a chunk": logprob_bytes(shape, tokens=tokens),
        "bfloat16 copies": 2 * num_parameters * is_bfloat16,
    }
    held = [Held(what=what, of="policy", num_bytes=size, during="updates") for what, size in sizes.items() if size]
    if not torch.cuda.is_available():
        gaps = int(HEAP_GAPS * activations)
        held.append(Held(what="gaps in the heap", of="policy", num_bytes=gaps, during="always"))
    return held


def published_bytes(model: nn.Module) -> int:
    """One published version: a copy of what trains; of an adapter, the adapted matrices merged, in fp32.

    >>> published_bytes(nn.ModuleList([nn.Linear(3, 2, bias=False), nn.Linear(2, 1).requires_grad_(False)]))  # 6 · 4
    24
    """
    adapted = [p for name, p in model.named_parameters() if name.endswith(".base_layer.weight")]
    return FP32 * sum(p.numel() for p in adapted or (p for p in model.parameters() if p.requires_grad))


def activation_bytes(
    shape: Shape,
    *,
    tokens: int,
    is_bfloat16: bool = False,
    is_frozen: bool = False,
    num_recomputed: int = 0,
) -> int:
    """What one forward pass keeps for its backward pass: T (L a + 4 · 3 d).

    With the first n layers recomputed (`Policy.recompute`) T (4 n d + max(1, L − n) a + 4 · 3 d): of those layers their
    inputs, and one layer's activations at a time when those of the later layers are gone.

    a, a layer's bytes a token, counts the inputs of what is differentiated: two states of the residual stream, each
    normed, and normed and scaled; queries, keys, values and the attention's result, in fp32, and its result once more;
    gate, its activation, up and their product. 3 d: the last norm. Keys and values are held once for each branch that
    reads them (`tree_attention`); one and a half times a token is what is counted; branches of more than
    256 tokens hold more, 2.7 times with answers of 1,024. Masks, made once for all layers, are not counted.

        fp32      a = 4 ((6 − 2 f) d + 3 q + 3 k + 4 m) + h (8 − 4 f) (q + k)
        bfloat16  a = (26 − 8 f) d + 10 q + 12 k + 8 m + h 6 (q + k)   a copy for each matrix product that reads it

    f = 1 where the layers' own weights are frozen (adapters), h = 1 where heads are normed; else 0. Low-rank adapters
    add 28 r a token and layer, which is left out.
    """
    f, d = int(is_frozen), shape.width
    heads = (shape.query_width + shape.key_width) * shape.has_head_norms
    attention = 3 * shape.query_width + 3 * shape.key_width
    a_layer = FP32 * ((6 - 2 * f) * d + attention + 4 * shape.inner) + (8 - 4 * f) * heads
    if is_bfloat16:
        attention = 10 * shape.query_width + 12 * shape.key_width
        a_layer = (26 - 8 * f) * d + attention + 8 * shape.inner + 6 * heads
    layers = FP32 * num_recomputed * d + max(1, shape.layers - num_recomputed) * a_layer
    return tokens * (layers + FP32 * 3 * d)


def logprob_bytes(shape: Shape, *, tokens: int) -> int:
    """Log-probabilities of T predictions: 4 min(T V, chunk) + 4 · 3 min(T V, part) + 4 V d.

    Products with the output matrix, a chunk of them at a time; what is made of a part of the chunk; the output
    matrix's gradient. A GPU takes the whole chunk as one part.
    """
    num_logits = tokens * shape.vocabulary
    part = min(num_logits, CHUNK_ELEMENTS if torch.cuda.is_available() else CACHE_ELEMENTS)
    return FP32 * (min(num_logits, CHUNK_ELEMENTS) + PART_COPIES * part + shape.vocabulary * shape.width)


def cache_itemsize(model: PreTrainedModel) -> int:
    """Bytes of a number in the engine's cache, on a GPU where there is one."""
    return cache_dtype(model, torch.device("cuda" if torch.cuda.is_available() else "cpu")).itemsize


def cache_token_bytes(shape: Shape, itemsize: int) -> int:
    """Keys and values of one token over all layers: 2 L k b.

    >>> shape = Shape(layers=30, width=576, query_width=576, key_width=192, inner=1536, vocabulary=49152)
    >>> cache_token_bytes(shape, 4)  # 2 · 30 · 192 · 4
    46080
    """
    return 2 * shape.layers * shape.key_width * itemsize


def decode_row_bytes(shape: Shape, capacity: int, itemsize: int) -> int:
    """One completion of up to `capacity` tokens, prompt included, while it is decoded.

    capacity · (2 L k b + 20 + b) + 4 · 3 V + b (3 d + 3 m): cache; drawn token, logprob, random number and mask; logits
    in fp32, their probabilities and one copy more; what one block computes of a token.
    """
    a_token = cache_token_bytes(shape, itemsize) + 20 + itemsize
    return capacity * a_token + LOGIT_COPIES * FP32 * shape.vocabulary + itemsize * 3 * (shape.width + shape.inner)


def prefill_token_bytes(shape: Shape, capacity: int, itemsize: int) -> int:
    """One token of the chunk of prompts that is being computed: b (3 d + max(3 m, 3 q + 4 k) + capacity).

    What one block computes (residual stream, normed input and sum; gate, up and their product, or queries, keys and
    values with their rotation and the attention's result) and its row of the mask.
    """
    block = max(3 * shape.inner, 3 * shape.query_width + 4 * shape.key_width)
    return itemsize * (3 * shape.width + block + capacity)


def decode_plan(shape: Shape, *, capacity: int, budget: int, itemsize: int, most_tokens: int) -> tuple[int, int]:
    """(completions side by side, tokens of prompts computed at a time) within a budget in bytes.

    A quarter of the budget at most is for the chunk of prompts, which has 1 to `most_tokens` tokens; completions get
    the rest. No completion fits if the first number is 0.
    """
    a_token = prefill_token_bytes(shape, capacity, itemsize)
    chunk = max(1, min(most_tokens, budget // 4 // a_token))
    return max(0, (budget - chunk * a_token) // decode_row_bytes(shape, capacity, itemsize)), chunk


def engine_plan(
    model: PreTrainedModel, *, rows: int, capacity: int, chunk: int, num_prompts: int = 0, prompt_tokens: int = 0
) -> list[Held]:
    """The local engine on a copy of a model: weights, 2 L k b a token of the cache, and what a step computes.

    rows           completions side by side
    capacity       tokens of the longest prompt with its completion
    chunk          tokens of prompts computed at a time
    num_prompts    prompts of up to `prompt_tokens` tokens that are held once for all of their completions
    """
    shape, itemsize = shape_of(model.config), cache_itemsize(model)
    own = capacity - prompt_tokens * (num_prompts > 0)
    cache = (rows * own + num_prompts * prompt_tokens) * cache_token_bytes(shape, itemsize)
    step = rows * (decode_row_bytes(shape, capacity, itemsize) - capacity * cache_token_bytes(shape, itemsize))
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    is_held_twice = head is embedding and not torch.cuda.is_available() and is_worth_packing(head)
    return [
        *frozen_plan(model, "engine"),
        *[Held(what="packed output matrix", of="engine", num_bytes=_bytes([head]))] * is_held_twice,
        Held(what="keys and values", of="engine", num_bytes=cache, during="sampling"),
        Held(
            what="a step or a chunk of prompts",
            of="engine",
            num_bytes=max(step, chunk * prefill_token_bytes(shape, capacity, itemsize)),
            during="sampling",
        ),
    ]


def free_bytes(device: torch.device) -> int:
    """Memory that this process can still use on a device: a GPU's free memory, or what the system calls available,
    within the container's limit, and what this process has freed and kept."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = _fields(Path("/proc/meminfo")).get("MemAvailable", 0) * 1024  # kB
    if not available:  # not Linux: half of the machine's memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    group = Path("/sys/fs/cgroup")
    limit = group / "memory.max"
    if limit.is_file() and limit.read_text(encoding="ascii").strip().isdigit():
        used = int((group / "memory.current").read_text(encoding="ascii"))
        reclaimable = _fields(group / "memory.stat").get("inactive_file", 0)
        available = min(available, max(0, int(limit.read_text(encoding="ascii")) - used + reclaimable))
    return available + freed_bytes()


def in_units(num_bytes: int) -> str:
    """A number of bytes for people, in binary units.

    >>> in_units(46080), in_units(3 << 30)
    ('45.0 KiB', '3.0 GiB')
    """
    value, units = float(num_bytes), ["B", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _fields(path: Path) -> dict[str, int]:
    """`name: number` or `name number` lines of a kernel file; nothing where there is no such file."""
    if not path.is_file():
        return {}
    words = (line.replace(":", " ").split() for line in path.read_text(encoding="ascii").splitlines())
    return {row[0]: int(row[1]) for row in words if len(row) > 1 and row[1].isdigit()}
