"""The written-out Llama family against transformers: logits of the same weights, prompts and steps."""

from __future__ import annotations

import pytest
import torch
from transformers import (
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

from lydian.errors import ModelError
from lydian.models.decode import Decoder, TransformersBody, body_of
from lydian.models.llama_decode import LlamaBody, cache_dtype
from lydian.models.weights import weights_of
from tests.models.families import _SHAPE as SHAPE
from tests.models.families import FAMILIES, VOCABULARY, make

SMOLLM2 = SHAPE | {"hidden_size": 48, "intermediate_size": 128, "num_attention_heads": 6, "num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

KNOWN = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "llama with biases": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "llama, one key head": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE | {"num_key_value_heads": 1})),
    "llama, wide heads": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, head_dim=16)),
    "llama 3 rotation": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=LLAMA3)),
    "linear rotation": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0})
    ),
    "smollm2-like": lambda: LlamaForCausalLM(
        LlamaConfig(**SMOLLM2, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e5})
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
}

UNKNOWN = {
    "gelu": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, hidden_act="gelu")),
    "dynamic rotation": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0})
    ),
    "sliding mistral": lambda: make("mistral_sliding"),
    "gemma3": lambda: make("gemma3"),
    "gpt2": lambda: make("gpt2"),
}


def random_model(name: str, seed: int = 0) -> PreTrainedModel:
    """Weights, biases and norms all random, so that none of them could be left out unnoticed."""
    torch.manual_seed(seed)
    model = KNOWN[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.rand_like(parameter))
            else:
                parameter.mul_(6.0)
    return model


def logits_by_steps(decoder: Decoder, tokens: list[int], num_prompt: int) -> torch.Tensor:
    """Next-token logits after the prompt and after each further token, [len(tokens) − num_prompt + 1, V]."""
    hidden = [decoder.prefill([tokens[:num_prompt]])]
    hidden += [decoder.step(torch.tensor([token])) for token in tokens[num_prompt:]]
    return decoder.logits(torch.cat(hidden))


def test_a_cpu_widens_the_cache_of_models_written_out_here_and_of_no_other():
    """bf16 weights: fp32 keys on a CPU, bf16 ones on a GPU, and bf16 ones where transformers' modules decode."""
    llama, other = (FAMILIES[name]().to(torch.bfloat16) for name in ("llama", "gpt2"))
    assert cache_dtype(llama, torch.device("cpu")) == body_of(llama).cache_dtype == torch.float32
    assert cache_dtype(llama, torch.device("cuda")) == torch.bfloat16
    assert cache_dtype(other, torch.device("cpu")) == body_of(other).cache_dtype == torch.bfloat16


@pytest.mark.parametrize("name", KNOWN)
def test_numbers_are_transformers(name: str):
    """A prompt of 9 tokens and 30 steps, so that rotations and the cache matter."""
    model = random_model(name)
    tokens = torch.randint(VOCABULARY, (39,)).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0, 8:]
    body = body_of(model)
    assert isinstance(body, LlamaBody)
    found = logits_by_steps(Decoder(body, num_slots=1, capacity=39), tokens, 9)
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, atol=2e-5 * expected.abs().max().item(), rtol=0)


def test_numbers_in_bfloat16_are_transformers_up_to_its_rounding():
    """Both round at 8 bits after each operation; fp32 logits of the same weights are the measure of what that costs."""
    tokens = torch.randint(VOCABULARY, (30,)).tolist()
    with torch.no_grad():
        exact = random_model("qwen3").bfloat16().float()(torch.tensor([tokens])).logits[0, 8:]
        rounded = random_model("qwen3").bfloat16()(torch.tensor([tokens])).logits[0, 8:].float()
    decoder = Decoder(body_of(random_model("qwen3").bfloat16()), num_slots=1, capacity=30)
    found = logits_by_steps(decoder, tokens, 9)
    assert (found - exact).abs().mean() < 1.5 * (rounded - exact).abs().mean()


@pytest.mark.parametrize("name", ["llama with biases", "smollm2-like", "qwen3"])
def test_loading_gives_the_numbers_of_the_new_weights(name: str):
    """Stacked matrices, biases, norms, and an embedding tied to the output matrix, by the names that are published."""
    body, other = body_of(random_model(name)), random_model(name, seed=1)
    tokens = list(range(3, 23))
    body.load(weights_of(other, version=1).tensors)
    with torch.no_grad():
        expected = other(torch.tensor([tokens])).logits[0, 4:]
    found = logits_by_steps(Decoder(body, num_slots=1, capacity=20), tokens, 5)
    torch.testing.assert_close(found, expected, atol=2e-5 * expected.abs().max().item(), rtol=0)
    assert body.names == weights_of(random_model(name), version=1).tensors.keys()


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_it_does_not_know_is_left_to_transformers(name: str):
    assert isinstance(body_of(UNKNOWN[name]().eval()), TransformersBody)


def test_a_parameter_that_it_would_not_use_is_refused():
    """As a later transformers might add one: leaving it out would change the numbers unnoticed."""
    model = random_model("llama")
    model.model.layers[0].self_attn.gate = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ModelError, match="gate"):
        body_of(model)
