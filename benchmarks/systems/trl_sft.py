"""TRL's SFTTrainer on conversations that are token ids already, in the order in which they are given."""

from __future__ import annotations

import json
from pathlib import Path

from channel import Channel, use_threads


def main(channel: Channel) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
    from trl_pacing import adapter, arguments, drive, model_and_tokenizer

    config = channel.config
    use_threads(config)
    rows = json.loads(Path(config["workload"]).read_text(encoding="utf-8"))
    data = [
        {
            "input_ids": row["ids"],
            "labels": [token if used else -100 for token, used in zip(row["ids"], row["trained"], strict=True)],
        }
        for row in rows
    ]
    model, tokenizer = model_and_tokenizer(config)
    trainer = SFTTrainer(
        model,
        args=SFTConfig(
            **arguments(config, batch=config["batch"], num_steps=len(rows) // config["batch"]),
            max_length=None,
            train_sampling_strategy="sequential",
        ),
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer,
        peft_config=adapter(config),
    )
    drive(trainer, channel)


if __name__ == "__main__":
    channel = Channel()
    with channel.reporting():
        main(channel)
