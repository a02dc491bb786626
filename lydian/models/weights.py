"""A version of the weights, on its way from the learner to whatever samples with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lydian.models.merge import base_tensors, merged_tensors
from lydian.models.prefix import PREFIX, prefix_states


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Minted by `Learner.publish` only.

    version  counts the publications of one run, from 0
    tensors  the whole model's parameters under the base model's names, adapters merged; a prefix beside them
    digest   of the trained tensors: equal digests on one base are equal weights
    """

    version: int
    tensors: Mapping[str, Tensor]
    digest: str


def weights_of(model: nn.Module, version: int, *, with_adapter: bool = True) -> Weights:
    """The model's weights as they are now, adapters merged, safe from later training: what trains is copied.

    with_adapter  False for the base alone
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    live = {p.data_ptr() for p in trainable.values()}
    tensors = {
        name: tensor.detach().clone() if tensor.data_ptr() in live else tensor.detach()
        for name, tensor in _published(model, with_adapter).items()
    }
    return Weights(version=version, tensors=tensors, digest=tensors_digest(trainable))


def _published(model: nn.Module, with_adapter: bool) -> dict[str, Tensor]:
    prefix = prefix_states(model) if with_adapter else None
    if prefix is not None:
        return base_tensors(model) | {PREFIX: prefix.detach().clone()}
    return merged_tensors(model) if with_adapter else base_tensors(model)


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.view(torch.uint8).numpy().data if tensor.ndim else tensor.numpy().tobytes())
    return digest.hexdigest()
