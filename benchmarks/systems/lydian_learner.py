"""What Lydian's training workers have in common: the policy and the learner of a row of the table."""

from __future__ import annotations

from typing import Any

import torch

from lydian.models.adapters import AdapterSettings
from lydian.models.load import LoadedModel, load_model
from lydian.models.policy import Policy
from lydian.training.algorithms import ALGORITHMS
from lydian.training.learner import Batching, Learner
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from lydian.training.stage import make_learner


def loaded_model(config: dict[str, Any]) -> LoadedModel:
    """The model with fp32 masters; with a LoRA adapter where the comparison has one."""
    rank = config.get("lora")
    return load_model(config["model"], adapter=AdapterSettings(rank=rank, alpha=2.0 * rank) if rank else None)


def stage_settings(config: dict[str, Any], algorithm: str, **more: Any) -> StageSettings:
    """Constant learning rate, AdamW without decay: what the other side is told as well."""
    normaliser = ALGORITHMS[algorithm].defaults.get("normaliser", "token_mean")
    optimiser = OptimiserSettings(learning_rate=config["learning_rate"])
    batching = Batching(batch_tokens=config["batch_tokens"])
    return StageSettings(optimiser=optimiser, normaliser=normaliser, batching=batching, **more)


def learner_of(config: dict[str, Any], loaded: LoadedModel, algorithm: str, settings: StageSettings) -> Learner:
    """bf16 runs as autocast over the fp32 masters."""
    policy = Policy(loaded.model, compute_dtype=getattr(torch, config["dtype"]))
    objective = {"beta": config["beta"]} if "beta" in config else {}
    return make_learner(
        policy, ALGORITHMS[algorithm], settings, objective=objective, max_tokens=config.get("new_tokens")
    )
