"""Lydian's learner on pairs: reference logprobs, accumulate and step, in the order in which they are given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from channel import Commands, serve, use_threads
from lydian_learner import learner_of, loaded_model, stage_settings
from lydian_plain import gaps, logprobs
from torch import Tensor, nn

from lydian.data.sequence import Pair, Sequence


def load(config: dict[str, Any]) -> Commands:
    use_threads(config)
    rows = json.loads(Path(config["workload"]).read_text(encoding="utf-8"))
    items = [_pair(k, row) for k, row in enumerate(rows)]
    learner = learner_of(config, loaded_model(config), "dpo", stage_settings(config, "dpo"))

    def batch(index: int) -> list[Pair]:
        return items[index * config["batch"] : (index + 1) * config["batch"]]

    def step(index: int) -> dict[str, Any]:
        statistics = learner.accumulate(batch(index))
        return {"loss": statistics["loss"]} | learner.step(0.0)

    def equality() -> dict[str, Any]:
        learner.accumulate(batch(0))
        learner.step(0.0)  # away from the reference, where the loss would be log 2 whatever the pairs
        pairs = batch(1)
        with torch.no_grad():
            reference = loaded_model(config).model
            margins = [(logprobs(reference, p.chosen).sum() - logprobs(reference, p.rejected).sum()) for p in pairs]

        def plain(model: nn.Module) -> Iterator[Tensor]:
            for pair, margin in zip(pairs, margins, strict=True):
                difference = logprobs(model, pair.chosen).sum() - logprobs(model, pair.rejected).sum() - margin
                yield -nn.functional.logsigmoid(config["beta"] * difference) / len(pairs)

        return gaps(learner, pairs, plain)

    return {"step": step, "equality": equality}


def _pair(index: int, row: dict[str, Any]) -> Pair:
    chosen, rejected = (
        Sequence(
            id=f"{index}/{name}",
            group=str(index),
            tokens=tuple(row[name]["ids"]),
            trained=tuple(row[name]["trained"]),
            facts={"pair": float(index)} | dict.fromkeys(("is_chosen", "is_desirable"), float(name == "chosen")),
        )
        for name in ("chosen", "rejected")
    )
    return Pair(chosen=chosen, rejected=rejected)


if __name__ == "__main__":
    serve(load)
