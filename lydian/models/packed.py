"""Linear layers that are never trained, side by side and in the layout that this processor multiplies fastest.

A plain matrix product of few rows spends most of its time bringing the weight matrix into the layout that its kernel
reads; a decoder multiplies by the same weights at every step. Packing once a weight version makes the product of 16 to
128 rows about 1.5 times faster (docs/performance.md). Layers with the same input become one product. Results equal the
plain layers' up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch
from torch import Tensor, nn
from torch.nn import functional

_ROWS_HINT = 64
"""Rows that the blocked layout is chosen for."""

_FEWEST_WEIGHTS = 1 << 17
"""Smaller matrices are not packed: calling the packed kernel costs more than it saves."""


class FrozenLinear(nn.Module):
    """x Wᵀ + b, where W and b stack those of one or more linear layers, which it takes over.

    layers  linear layers of the same input, all with a bias or none
    names   id of a parameter → its name, under which `load` finds new values
    """

    def __init__(self, layers: Seq[nn.Linear], names: Mapping[int, str]) -> None:
        super().__init__()
        weights = [layer.weight for layer in layers]
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self._weight_names = tuple(names[id(weight)] for weight in weights)
        self._bias_names = tuple(names[id(bias)] for bias in biases)
        self._weight = _stacked(weights)
        self._bias = _stacked(biases) if biases else None
        self._is_packed = can_pack(self._weight)
        self._dtype = self._weight.dtype
        if self._is_packed:
            self._weight = _packed(self._weight)
        for layer in layers:
            layer.weight = layer.bias = None  # type: ignore[assignment]  # or its weights would be held twice

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that it stands for."""
        return self._weight_names + self._bias_names

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes new values of its parameters."""
        weights = [tensors[name] for name in self._weight_names]
        if self._is_packed:
            self._weight = _packed(_stacked(weights).to(self._dtype))
        else:
            _fill(self._weight, weights)
        if self._bias is not None:
            _fill(self._bias, [tensors[name] for name in self._bias_names])

    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b, [..., in] → [..., out]."""
        if self._is_packed:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return result
        return functional.linear(x, self._weight, self._bias)


def can_pack(weight: Tensor) -> bool:
    """Whether this build of torch packs weights on this device, and packing this one pays."""
    return weight.device.type == "cpu" and torch.backends.mkldnn.is_available() and is_worth_packing(weight)


def is_worth_packing(weight: Tensor) -> bool:
    """Whether packing makes products with this matrix faster, where it is possible."""
    if weight.numel() < _FEWEST_WEIGHTS:
        return False
    if weight.dtype == torch.bfloat16:
        return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def freeze_linears(model: nn.Module) -> list[FrozenLinear]:
    """Replaces every linear layer of the model, each by itself; returns the replacements.

    A weight that is shared with an embedding stays a parameter there as well.
    """
    names = parameter_names(model)
    frozen = []
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            layer = FrozenLinear([module], names)
            frozen.append(layer)
            model.set_submodule(path, layer)
    return frozen


def parameter_names(model: nn.Module) -> dict[int, str]:
    """id of each parameter → its name, the first of tied ones."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def _stacked(tensors: Seq[Tensor]) -> Tensor:
    return tensors[0].detach() if len(tensors) == 1 else torch.cat([tensor.detach() for tensor in tensors])


def _fill(target: Tensor, parts: Seq[Tensor]) -> None:
    for rows, part in zip(target.split([len(part) for part in parts]), parts, strict=True):
        rows.copy_(part)


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
    return packed
