"""Models with something to train on: the same questions of training, asked of a toy and of a pretrained network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from peft import PeftModel
from transformers import PreTrainedModel

from lydian.errors import ModelError
from lydian.models.adapters import AdapterSettings
from lydian.models.load import load_model, locate
from lydian.models.policy import Policy
from lydian.models.read import read_tokenizer
from lydian.models.teacher import Teacher
from lydian.rollout.local import LocalEngine
from lydian.text.encoded import Template
from lydian.text.template import make_template
from tests.training import toys

SMOLLM2 = "smollm2-135m"


@dataclass(frozen=True, kw_only=True)
class World:
    """A model and short texts for it.

    template    turns the texts into its ids
    network     makes the model that trains, each time from the same weights
    teacher     makes another one, to learn from
    engine      makes what samples with the model's first weights
    questions   what it is asked
    replies     a better and a worse reply to any of them; one after the other they are two steps
    pattern     what about half of its own replies match
    max_tokens  of those
    rounds      of one step each
    """

    template: Template
    network: Callable[[], PreTrainedModel | PeftModel]
    teacher: Callable[[], Teacher]
    engine: Callable[[], LocalEngine]
    questions: tuple[str, ...]
    replies: tuple[str, str]
    pattern: str
    max_tokens: int
    rounds: int


def letters() -> World:
    """Random weights over single letters, all of them trained."""
    return World(
        template=toys.Letters(),
        network=toys.llama,
        teacher=lambda: Teacher(policy=Policy(toys.llama(seed=1).requires_grad_(False)), num_tokens=toys.VOCABULARY),
        engine=toys.engine,
        questions=("ff", "gf", "hf", "if"),
        replies=("ab", "cde"),
        pattern="[a-f]",
        max_tokens=4,
        rounds=3,
    )


def smollm2() -> World:
    """A pretrained model, of which an adapter is trained. Skips the test where its checkpoint is not here."""
    try:
        template = make_template("plain", read_tokenizer(locate(SMOLLM2)))
    except ModelError as error:
        pytest.skip(str(error))

    def network() -> PeftModel:
        torch.manual_seed(0)  # of the adapter's first weights
        adapted = load_model(SMOLLM2, adapter=AdapterSettings(rank=4)).model
        assert isinstance(adapted, PeftModel)
        return adapted

    def teacher() -> Teacher:
        base = load_model(SMOLLM2)
        # An adapter begins as the model itself: from that teacher there would be nothing to learn.
        torch.nn.init.zeros_(base.model.get_decoder().layers[-1].mlp.down_proj.weight)
        return Teacher.of(base, base)

    return World(
        template=template,
        network=network,
        teacher=teacher,
        engine=lambda: LocalEngine.of(SMOLLM2, template),
        questions=("2 + 3 = ?", "Name a colour.", "7 - 1 = ?"),
        replies=(" It is so.", " No, it is not."),
        pattern=r"\A(..)*\Z",  # an even number of characters
        max_tokens=8,
        rounds=1,
    )


WORLDS: dict[str, Callable[[], World]] = {"letters": letters, "smollm2": smollm2}
