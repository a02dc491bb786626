"""Lydian's learner on conversations: accumulate and step, in the order in which they are given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from channel import Commands, serve, use_threads
from lydian_learner import learner_of, loaded_model, stage_settings
from lydian_plain import gaps, logprobs
from torch import Tensor, nn

from lydian.data.sequence import Sequence


def load(config: dict[str, Any]) -> Commands:
    use_threads(config)
    rows = json.loads(Path(config["workload"]).read_text(encoding="utf-8"))
    items = [
        Sequence(id=str(k), group=str(k), tokens=tuple(row["ids"]), trained=tuple(row["trained"]))
        for k, row in enumerate(rows)
    ]
    learner = learner_of(config, loaded_model(config), "sft", stage_settings(config, "sft"))

    def batch(index: int) -> list[Sequence]:
        return items[index * config["batch"] : (index + 1) * config["batch"]]

    def step(index: int) -> dict[str, Any]:
        statistics = learner.accumulate(batch(index))
        return {"loss": statistics["loss"]} | learner.step(0.0)

    def equality() -> dict[str, Any]:
        num_tokens = sum(item.num_trained for item in batch(0))

        def plain(model: nn.Module) -> Iterator[Tensor]:
            for item in batch(0):
                yield -logprobs(model, item).sum() / num_tokens

        return gaps(learner, batch(0), plain)

    return {"step": step, "equality": equality}


if __name__ == "__main__":
    serve(load)
