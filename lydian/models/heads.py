"""Heads: linear maps from hidden states to a value, a score or classes, beside a language model's output matrix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lydian.data.forest import Sites
from lydian.data.labelled import Labelled, Stepwise, classes_of
from lydian.data.steps import rule_of
from lydian.errors import ModelError

Output = Literal["value", "score", "class_logits"]
OUTPUTS: tuple[Output, ...] = ("value", "score", "class_logits")
"""What objectives may ask a head for. A value speaks of what is to come, so it is read before the token is; a score and
class logits judge what has been written, so they are read after it."""
HEAD_FILE = "head.safetensors"
CRITIC_FOLDER = "critic"
"""Within the folder of a policy, what its critic was in the end."""


class Head(nn.Module):
    """output(h) = W h + b in float32, W [width, d] and b [width], both 0 at first: all start with equal scores.

    output  what it gives: value, score or class_logits
    size    d, of the hidden states
    width   numbers a state: 1 for a value or score, the number of classes for class_logits
    facts   what its numbers mean, as JSON values saved with it: template, classes, rule of steps, mean and deviation
    """

    def __init__(self, output: Output, size: int, width: int = 1, *, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        if output not in OUTPUTS or (width != 1 and output != "class_logits") or width < 1:
            raise ModelError(
                where="Head",
                given=f"{output!r} of width {width}",
                expected=f"one of {', '.join(OUTPUTS)}; width 1 but for class_logits",
                fix="Correct the head's output or width.",
            )
        self.output: Output = output
        self.facts: dict[str, Any] = dict(facts or {})
        self.linear = nn.Linear(size, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Float[Tensor, "n d"]) -> Tensor:
        """[n] numbers, or [n, width] class logits."""
        with torch.autocast(states.device.type, enabled=False):
            numbers: Tensor = self.linear(states.float())
        return numbers if self.output == "class_logits" else numbers.squeeze(-1)

    def at_sites(self, states: Float[Tensor, "m d"], sites: Sites) -> Tensor:
        """The head's output at each site, from a forest's flattened hidden states."""
        return self(states[sites.source if self.output == "value" else sites.after])

    def save(self, folder: Path) -> None:
        """Writes `head.safetensors` into an existing folder, beside the model that the head reads."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        described = json.dumps({"output": self.output, "facts": self.facts}, sort_keys=True, allow_nan=False)
        # one entry, for safetensors writes several in any order, and equal heads must be equal files
        save_file(tensors, folder / HEAD_FILE, metadata={"head": described})

    @staticmethod
    def load(folder: Path) -> Head:
        """The head saved in a folder. Raises ModelError if there is none."""
        path = folder / HEAD_FILE
        if not path.is_file():
            raise ModelError(
                where=str(folder),
                given=f"no {HEAD_FILE}",
                expected="a model saved with its head, such as a reward model's",
                fix="Name the folder of a stage that trains a head (runs/x/models/01_reward_model).",
            )
        tensors = load_file(path)
        width, size = tensors["linear.weight"].shape
        with safe_open(path, framework="pt") as file:
            described = json.loads(file.metadata()["head"])
        head = Head(described["output"], size, width, facts=described["facts"])
        head.load_state_dict(tensors)
        return head


def head_for(output: Output, size: int, items: Seq[object]) -> Head:
    """A new head as wide as the data ask, which knows what they say of its numbers.

    items  what it will be trained on: texts with a class give it `classes`, replies with step labels the rule `steps`

    Raises DataError for fewer than two classes, and for steps that no rule makes.
    """
    labelled = [item for item in items if isinstance(item, Labelled)]
    stepwise = [item.steps for item in items if isinstance(item, Stepwise)]
    facts: dict[str, Any] = {"steps": rule_of(stepwise)} if stepwise else {}
    if output != "class_logits":
        return Head(output, size, facts=facts)
    classes = classes_of(labelled)
    return Head(output, size, len(classes), facts={"classes": list(classes)})
