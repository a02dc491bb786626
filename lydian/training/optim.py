"""The optimiser step: AdamW, the learning-rate schedule, gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from lydian.errors import RecipeError


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserSettings:
    """AdamW with decoupled weight decay (Loshchilov & Hutter, arXiv:1711.05101).

    learning_rate      peak learning rate
    schedule           constant, or linear or cosine decay to zero over the stage
    warmup_share       share of the stage over which the learning rate rises linearly from zero
    weight_decay       decoupled decay of matrices; biases and norms are never decayed
    beta1              decay of the running mean of gradients
    beta2              decay of the running mean of squared gradients
    max_gradient_norm  gradients longer than this are scaled down to it; 0 never scales
    """

    learning_rate: float
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_share: float = 0.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    max_gradient_norm: float = 1.0

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("learning_rate", self.learning_rate >= 0, "≥ 0"),
            ("warmup_share", 0 <= self.warmup_share < 1, "in [0, 1)"),
            ("max_gradient_norm", self.max_gradient_norm >= 0, "≥ 0"),
        ):
            if not holds:
                raise RecipeError(where=name, given=getattr(self, name), expected=expected, fix="Correct the setting.")

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate after a share `progress` in [0, 1] of the stage.

        >>> OptimiserSettings(learning_rate=1.0, schedule="linear", warmup_share=0.5).learning_rate_at(0.75)
        0.5
        """
        if progress < self.warmup_share:
            return self.learning_rate * progress / self.warmup_share
        share = (progress - self.warmup_share) / (1 - self.warmup_share)
        decay = {"constant": 1.0, "linear": 1 - share, "cosine": 0.5 * (1 + math.cos(math.pi * share))}
        return self.learning_rate * decay[self.schedule]


def make_optimiser(parameters: Iterable[nn.Parameter], settings: OptimiserSettings) -> torch.optim.AdamW:
    """AdamW over fp32 masters; matrices decay, vectors do not."""
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        fused=True,
    )
