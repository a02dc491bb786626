"""bf16 trains as fp32 does: gradients point the same way and are as long, layer by layer; losses fall alike."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface

from lydian.data.forest import plant, site_weights
from lydian.data.sequence import Sequence
from lydian.models.load import load_model
from lydian.models.policy import Policy
from lydian.models.tree_attention import IMPLEMENTATION, attend
from lydian.objectives.likelihood import nll
from lydian.training.collect import Corpus
from lydian.training.learner import Learner
from lydian.training.loop import Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings


def replies() -> list[Sequence]:
    """Four replies of 10 to 25 tokens to each of four prompts, random."""
    draw = random.Random(0)
    found = []
    for group in range(4):
        prompt = [draw.randrange(3, 300) for _ in range(12 + group)]
        for k in range(4):
            tokens = (*prompt, *(draw.randrange(3, 300) for _ in range(10 + 5 * k)))
            trained = (False,) * len(prompt) + (True,) * (len(tokens) - len(prompt))
            found.append(Sequence(id=f"{group}/{k}", group=str(group), tokens=tokens, trained=trained))
    return found


def gradients(dtype: torch.dtype) -> dict[str, Tensor]:
    """Of the mean −log π over all replies, one vector for each layer's attention, MLP and norms, and for the rest."""
    items = replies()
    policy = Policy(load_model("tiny").model, compute_dtype=dtype)
    for forest in plant(items, site_weights(items, "token_mean")):
        (-forest.sites.weight * policy.logprobs(forest)[0]).sum().backward()
    parts = defaultdict(list)
    for name, parameter in policy.trainable().items():
        parts[".".join(name.split(".")[1:4]) if ".layers." in name else name].append(parameter.grad.flatten())
    return {name: torch.cat(found) for name, found in parts.items()}


def largest_gaps(a: dict[str, Tensor], b: dict[str, Tensor]) -> tuple[float, float]:
    """1 − cosine, and how far the ratio of lengths is from 1; the worst of all parts."""
    angle = max(1 - torch.cosine_similarity(a[name], b[name], dim=0).item() for name in a)
    return angle, max(abs((b[name].norm() / a[name].norm()).item() - 1) for name in a)


def test_gradients_are_those_of_fp32():
    """bf16 rounds at 2⁻⁹. Measured: an angle of at most 2e-5, and lengths within 0.3 %."""
    angle, length = largest_gaps(gradients(torch.float32), gradients(torch.bfloat16))
    assert angle < 1e-4
    assert length < 0.01


def test_and_would_show_an_attention_that_is_scaled_wrongly(monkeypatch: pytest.MonkeyPatch):
    exact = gradients(torch.float32)
    off = lambda *args, scaling, **options: attend(*args, scaling=1.05 * scaling, **options)  # noqa: E731
    monkeypatch.setitem(AttentionInterface._global_mapping, IMPLEMENTATION, off)
    angle, length = largest_gaps(exact, gradients(torch.bfloat16))
    assert angle > 1e-4 or length > 0.01


def test_losses_fall_alike():
    """Forty AdamW steps on random replies, which only memory can fit: the mean loss falls by more than half, and at no
    step are the two more than 2 % apart."""
    curves = []
    for dtype in (torch.float32, torch.bfloat16):
        learner = Learner(
            Policy(load_model("tiny").model, compute_dtype=dtype),
            objective=nll,
            normaliser="token_mean",
            optimiser=OptimiserSettings(learning_rate=2e-3),
        )
        journal = Quiet()
        train(learner, Corpus(replies()), StageSettings(epochs=40), journal, seed=0)
        curves.append([step["loss"] for step in journal.metrics])
    exact, rounded = (torch.tensor(curve) for curve in curves)
    assert len(exact) == 40
    assert exact[-1] < 0.5 * exact[0]
    assert ((rounded - exact).abs() / exact).max() < 0.02
