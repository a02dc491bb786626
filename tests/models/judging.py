"""Reward models on disk for tests: the untrained tiny model with a random head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lydian.models.fresh import tiny_untrained
from lydian.models.heads import Head, Output
from lydian.models.save import save_model
from lydian.text.template import PlainTemplate

PROMPT = "{question}\nSteps:"


def saved(folder: Path, output: Output = "score", width: int = 1, **facts: Any) -> Path:
    """The folder of a model whose head has random weights (seed 0) and knows its template; a fact None is left out."""
    model, tokenizer = tiny_untrained(0)
    template = PlainTemplate(tokenizer, prompt=PROMPT)
    said = {
        "template": {"kind": "plain", "settings": {"prompt": PROMPT}},
        "template_fingerprint": template.fingerprint,
    }
    kept = {name: value for name, value in (said | facts).items() if value is not None}
    head = Head(output, model.config.hidden_size, width, facts=kept)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.nn.init.normal_(head.linear.weight)
        torch.nn.init.normal_(head.linear.bias)
    save_model(model, tokenizer, folder, merge=False, head=head)
    return folder
