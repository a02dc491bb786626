"""What a critic begins with: a value head on the policy's own model, or a network of its own."""

from __future__ import annotations

import copy
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel

from lydian.errors import ModelError
from lydian.models.heads import CRITIC_FOLDER, HEAD_FILE, Head
from lydian.models.load import is_adapter_folder, load_model, locate
from lydian.models.policy import Policy, recomputable_layers


def with_value_head(policy: Policy) -> Policy:
    """The same model with a new value head beside it."""
    return _critic(policy.model, policy, Head("value", policy.output.weight.shape[1]))


def own_critic(policy: Policy, start: str) -> Policy:
    """A network of its own for the values of a policy.

    start  a model to begin with, such as a reward model's folder; empty for a copy of the policy

    Frozen weights, such as those under an adapter, are shared with the policy and not copied. A head of one output that
    lies beside the model is taken over: a reward model's score of the text so far is a fair first guess of its value.
    A policy that was trained with a critic gives that critic, which goes on with what trained, be it an adapter.
    Raises ModelError if the model does not fit the policy's vocabulary, or its head gives classes.
    """
    size = policy.output.weight.shape[1]
    if not start:
        frozen = {id(p): p for p in policy.model.parameters() if not p.requires_grad}
        return _critic(copy.deepcopy(policy.model, frozen), policy, Head("value", size))
    network, beside = _parts(locate(start))
    is_continued = beside.name == CRITIC_FOLDER and is_adapter_folder(network)
    model = load_model(network, adapter="continue" if is_continued else None).model
    rows, size = model.get_output_embeddings().weight.shape
    given = Head.load(beside) if (beside / HEAD_FILE).is_file() else Head("value", size)
    if rows < policy.output.weight.shape[0] or given.output == "class_logits":
        raise ModelError(
            where=f"critic.start = {start!r}",
            given=f"{rows} output rows and a head of {given.output}",
            expected=f"at least the policy's {policy.output.weight.shape[0]} rows, and a head of one number or none",
            fix="Start from a reward model trained on the same base model, or leave `start` out.",
        )
    head = Head("value", size)
    head.load_state_dict(given.state_dict())
    return _critic(model, policy, head)


def _parts(place: Path) -> tuple[Path, Path]:
    """Where the network lies that a critic begins with, and where its head would. `save_model` wrote a trained one."""
    trained = place / CRITIC_FOLDER
    if not trained.is_dir():
        return place, place
    is_shared = not (is_adapter_folder(trained) or (trained / "config.json").is_file())
    return place if is_shared else trained, trained


def _critic(model: PreTrainedModel | PeftModel, policy: Policy, head: Head) -> Policy:
    """The model with a head, computed where and how the policy is."""
    critic = Policy(model.to(policy.device), compute_dtype=policy.compute_dtype, head=head.to(policy.device))
    critic.recompute(min(policy.num_recomputed, len(recomputable_layers(model))))
    return critic
