"""The plain path that Lydian's is compared with: one sequence at a time through transformers, no forest, no packing.

It is computed in float64: in float32 its own rounding is larger than what is to be measured (SmolLM2, four
conversations: the plain float32 gradient is 1.4e-4 from the float64 one, Lydian's 4e-6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lydian.data.forest import Item
from lydian.data.sequence import Sequence as Tokens
from lydian.training.learner import Learner


def logprobs(model: nn.Module, sequence: Tokens) -> Tensor:
    """log π of each trained token of a sequence."""
    ids = torch.tensor([sequence.tokens])
    scores = model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1)
    chosen = scores.gather(-1, ids[0, 1:, None]).squeeze(-1)
    return chosen[torch.tensor(sequence.trained[1:])]


def gaps(
    learner: Learner, items: Sequence[Item], losses: Callable[[nn.Module], Iterable[Tensor]]
) -> dict[str, dict[str, float]]:
    """|loss − plain loss| / |plain loss|, and ‖gradient − plain gradient‖ / ‖plain gradient‖, over one whole step.

    losses  the plain terms, whose sum is the step's loss; each is differentiated as it comes
    """
    model = learner.policy.model
    loss = learner.accumulate(items)["loss"]
    gradient = _take_gradient(model)
    plain_loss = 0.0
    model.double()
    for term in losses(model):
        term.backward()
        plain_loss += term.item()
    plain_gradient = _take_gradient(model)
    model.float()
    difference = sum((gradient[name] - plain_gradient[name]).square().sum().item() for name in plain_gradient)
    size = sum(value.square().sum().item() for value in plain_gradient.values())
    return {
        "loss": {"gap": abs(loss - plain_loss) / max(abs(plain_loss), 1e-3), "lydian": loss, "plain": plain_loss},
        "gradient": {"gap": (difference / size) ** 0.5, "norm": size**0.5},
    }


def _take_gradient(model: nn.Module) -> dict[str, Tensor]:
    """The gradient, in double precision, which is then cleared."""
    taken: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            taken[name] = parameter.grad.double()
            parameter.grad = None
    return taken
