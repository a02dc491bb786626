"""Linear layers with weights in the processor's own blocked layout.

A plain matrix product of few rows spends most of its time bringing the weight matrix into the layout that its kernel
reads; a decoder multiplies by the same weights at every step. Packing once a weight version makes the product of 16 to
128 rows about 1.5 times faster (docs/performance.md). Results equal the plain layer's up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ROWS_HINT = 64
"""Rows that the blocked layout is chosen for."""


class PackedLinear(nn.Module):
    """x Wᵀ + b with W packed; stands in for an `nn.Linear` that is never trained."""

    def __init__(self, weight: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.bias = bias
        self.load(weight)

    @torch.no_grad()
    def load(self, weight: Tensor) -> None:
        """Packs new values of the weight, [out, in]."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS_HINT)

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b, [..., in] → [..., out]."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return result


def can_pack(weight: Tensor) -> bool:
    """Whether this build of torch packs weights of this type on this device."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def pack_linears(model: nn.Module) -> dict[str, PackedLinear]:
    """Replaces every linear layer of the model; returns the packed layers by their weights' former parameter names.

    A weight that is shared with an embedding stays a parameter there as well: the packed copy is then listed under the
    embedding's name.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    packed = {}
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear and can_pack(module.weight):
            layer = PackedLinear(module.weight, module.bias)
            packed[names[id(module.weight)]] = layer
            model.set_submodule(path, layer)
    return packed
