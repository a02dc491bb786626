"""Small models with adapters of every kind that can be merged, with values as training would give them."""

from __future__ import annotations

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from lydian.models.adapters import AdapterSettings, add_adapter
from tests.models.families import make

KINDS = {
    "lora": AdapterSettings(rank=4, alpha=8.0),
    "rslora": AdapterSettings(rank=4, alpha=8.0, rslora=True),
    "dora": AdapterSettings(kind="dora", rank=4, alpha=8.0),
    "ia3": AdapterSettings(kind="ia3"),
}
FAMILIES = ("llama", "llama_tied", "qwen2", "gpt2")
"""Untied, tied, with biases on q, k and v, and with matrices stored [inputs, outputs]."""
TOKENS = torch.arange(3, 23).reshape(2, 10)


def plain(family: str) -> PreTrainedModel:
    """A model of the family whose biases are not the zeros that they begin as."""
    model = make(family)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model


def logprobs(model):
    """log π of every token of the vocabulary at every place, by the model's own forward pass."""
    with torch.no_grad():
        return model(TOKENS).logits.float().log_softmax(-1)


def adapted(family: str, kind: str, **more) -> PeftModel:
    """A model of the family with a trained adapter."""
    return trained(add_adapter(plain(family), KINDS[kind], **more))


@torch.no_grad()
def trained(model: PeftModel) -> PeftModel:
    """Moves every number that trains: a fresh adapter changes nothing, so that no test of merging it could fail."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.2 * noise.to(parameter))
    return model
