"""Random models of each supported family, small enough for tests: 3 layers, width 32, 97 tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 97
_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SHAPE = _IDS | {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}
_SLIDES = ["sliding_attention", "sliding_attention", "full_attention"]

FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE)),
    "llama_tied": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_SHAPE)),
    "qwen2_sliding": lambda: Qwen2ForCausalLM(
        Qwen2Config(**_SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=8)),
    "mistral_sliding": lambda: MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=4)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**_SHAPE, head_dim=8, sliding_window=4, layer_types=_SLIDES)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            **_IDS,
            n_embd=32,
            n_layer=3,
            n_head=4,
            vocab_size=VOCABULARY,
            n_positions=128,
            resid_pdrop=0.0,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
        )
    ),
}


def make(family: str, seed: int = 0) -> PreTrainedModel:
    """A fresh model in evaluation mode whose weights depend on the seed alone; larger than usual, so that attention
    matters: with the default scale of 0.02 a wrong mask would hide in the rounding."""
    torch.manual_seed(seed)
    model = FAMILIES[family]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)
    return model
