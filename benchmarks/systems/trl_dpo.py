"""TRL's DPOTrainer on pairs that are token ids already, in the order in which they are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from channel import Channel, use_threads


def main(channel: Channel) -> None:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer
    from trl_pacing import adapter, arguments, drive, model_and_tokenizer

    class Prepared(DPOTrainer):
        """Takes the ids as they are; the trainer itself would tokenise text."""

        def _prepare_dataset(self, dataset: Any, *others: Any, **more: Any) -> Any:
            return dataset

    config = channel.config
    use_threads(config)
    pairs = json.loads(Path(config["workload"]).read_text(encoding="utf-8"))
    model, tokenizer = model_and_tokenizer(config)
    trainer = Prepared(
        model,
        args=DPOConfig(
            **arguments(config, batch=config["batch"], num_steps=len(pairs) // config["batch"]),
            beta=config["beta"],
            max_length=None,
            train_sampling_strategy="sequential",
        ),
        train_dataset=Dataset.from_list([_ids(pair) for pair in pairs]),
        processing_class=tokenizer,
        peft_config=adapter(config),
    )
    drive(trainer, channel)


def _ids(pair: dict[str, Any]) -> dict[str, list[int]]:
    chosen, rejected = pair["chosen"], pair["rejected"]
    prompt = chosen["trained"].index(True)
    assert chosen["ids"][:prompt] == rejected["ids"][:prompt]
    return {
        "prompt_ids": chosen["ids"][:prompt],
        "chosen_ids": chosen["ids"][prompt:],
        "rejected_ids": rejected["ids"][prompt:],
    }


if __name__ == "__main__":
    channel = Channel()
    with channel.reporting():
        main(channel)
