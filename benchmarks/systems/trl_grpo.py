"""TRL's GRPOTrainer: full steps (sampling with `generate`, reward, update) on completions of a fixed length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from channel import Channel, use_threads
from reward import parity

NEVER = "<|never|>"
"""An end-of-text token outside the model's vocabulary: nothing stops a completion, and no logit is masked."""


def main(channel: Channel) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl_pacing import adapter, arguments, drive, model_and_tokenizer

    config = channel.config
    use_threads(config)
    prompts = json.loads(Path(config["workload"]).read_text(encoding="utf-8"))
    model, tokenizer = model_and_tokenizer(config)
    for prompt in prompts:
        if tokenizer(text=prompt["text"])["input_ids"] != prompt["ids"]:
            raise ValueError(f"the tokenizer reads {prompt['text']!r} otherwise than Lydian does")
    tokenizer.add_special_tokens({"eos_token": NEVER})
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    if tokenizer.eos_token_id < model.config.vocab_size:
        raise ValueError("the stop token that must not occur is in the vocabulary")

    def reward(completions: list[str], **others: Any) -> list[float]:
        return [parity(text) for text in completions]

    trainer = GRPOTrainer(
        model,
        reward_funcs=reward,
        args=GRPOConfig(
            **arguments(
                config,
                batch=config["problems"] * config["group"],
                num_steps=len(prompts) // config["problems"],
            ),
            num_generations=config["group"],
            max_completion_length=config["new_tokens"],
            shuffle_dataset=False,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            beta=0.0,
            epsilon=0.2,
            num_iterations=1,
            loss_type="grpo",
            scale_rewards="group",
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt["text"]} for prompt in prompts]),
        processing_class=tokenizer,
        peft_config=adapter(config),
    )
    drive(trainer, channel)


if __name__ == "__main__":
    channel = Channel()
    with channel.reporting():
        main(channel)
