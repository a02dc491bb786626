"""Forward and backward over groups of sequences with one prompt each, in one of the forest's layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from channel import Commands, serve, use_threads
from lydian_plain import gaps, logprobs
from torch import Tensor, nn

from lydian.data.forest import plant, site_weights
from lydian.data.sequence import Sequence
from lydian.models.load import load_model
from lydian.models.policy import Policy
from lydian.objectives.likelihood import nll
from lydian.training.learner import Batching, Learner
from lydian.training.optim import OptimiserSettings


def random_groups(config: dict[str, Any], vocabulary: int) -> list[Sequence]:
    """`groups` prompts of random tokens, each with `group` completions of random tokens."""
    generator = torch.Generator().manual_seed(config["seed"])

    def draw(num: int) -> tuple[int, ...]:
        return tuple(torch.randint(vocabulary, (num,), generator=generator).tolist())

    sequences = []
    for g in range(config["groups"]):
        prompt = draw(config["prompt"])
        for k in range(config["group"]):
            sequences.append(
                Sequence(
                    id=f"{g}/{k}",
                    group=str(g),
                    tokens=prompt + draw(config["completion"]),
                    trained=(False,) * config["prompt"] + (True,) * config["completion"],
                )
            )
    return sequences


def load(config: dict[str, Any]) -> Commands:
    use_threads(config)
    model = load_model(config["model"]).model
    policy = Policy(model, layout=config["layout"], compute_dtype=getattr(torch, config["dtype"]))
    budgets = {name: config[name] for name in ("row_tokens", "batch_tokens") if config.get(name)}
    batching = Batching(**budgets)
    learner = Learner(
        policy,
        objective=nll,
        normaliser="token_mean",
        optimiser=OptimiserSettings(learning_rate=0.0),
        batching=batching,
    )
    items = random_groups(config, model.config.vocab_size)
    forests = plant(
        items,
        site_weights(items, "token_mean"),
        layout=config["layout"],
        batch_tokens=batching.batch_tokens,
        row_tokens=batching.row_tokens,
    )
    planted = sum(forest.num_tokens for forest in forests)

    def step(index: int) -> dict[str, Any]:
        loss = learner.accumulate(items)["loss"]
        model.zero_grad(set_to_none=True)
        return {"loss": loss, "planted_tokens": planted, "passes": len(forests)}

    def equality() -> dict[str, Any]:
        total = sum(item.num_trained for item in items)

        def plain(model: nn.Module) -> Iterator[Tensor]:
            for item in items:
                yield -logprobs(model, item).sum() / total

        return gaps(learner, items, plain)

    return {"step": step, "equality": equality}


if __name__ == "__main__":
    serve(load)
