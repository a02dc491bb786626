"""TRL's trainers own their loop: a callback makes them wait for the parent before each optimiser step."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from channel import Channel, Meter
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback


class Paced(TrainerCallback):
    """Blocks at the beginning of each step until the parent asks for it; answers when the step's loss is logged.

    The time from the beginning to the end of the step counts; fetching the batch and logging do not.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._meter = Meter()
        self._answer: dict[str, Any] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._channel.next() is None:
            sys.exit(0)
        self._meter = Meter()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._answer = dict(self._meter.read())

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **others: Any) -> None:
        if self._answer:
            numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
            self._channel.send({**self._answer, "result": numbers})
            self._answer = {}


def arguments(config: dict[str, Any], *, batch: int, num_steps: int) -> dict[str, Any]:
    """Settings of a trainer that are the same everywhere: one optimiser step of `batch` rows, AdamW, nothing saved."""
    micro = min(config["trl_batch"], batch)
    if batch % micro:
        raise ValueError(f"a step of {batch} rows is not a multiple of {micro} rows a pass (--trl-batch)")
    return {
        "output_dir": tempfile.mkdtemp(prefix="trl"),
        "use_cpu": True,
        "bf16": config["dtype"] == "bfloat16",  # autocast over fp32 masters, as in Lydian
        "gradient_checkpointing": config["trl_checkpointing"],
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": batch // micro,
        "max_steps": num_steps,
        "learning_rate": config["learning_rate"],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": config["seed"],
    }


def model_and_tokenizer(config: dict[str, Any]) -> tuple[Any, Any]:
    """Masters in fp32, dropout nowhere (neither model has any), and the tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(config["folder"], dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(config["folder"])


def adapter(config: dict[str, Any]) -> Any:
    """The LoRA settings that Lydian uses too, or None for full training."""
    if not config.get("lora"):
        return None
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM", r=config["lora"], lora_alpha=2 * config["lora"], target_modules="all-linear"
    )


def drive(trainer: Any, channel: Channel) -> None:
    """Trains at the parent's pace."""
    trainer.add_callback(Paced(channel))
    channel.ready()
    trainer.train()
