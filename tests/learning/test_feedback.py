"""KTO and BCO from thumbs up and down, without a pair: what is wanted gains on what is not; broken twins do not."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from lydian.data.problems import Feedback, Message
from lydian.models.policy import Policy
from lydian.objectives.loss import Loss
from lydian.objectives.preference_unpaired import bco, kto
from lydian.text.encode import encode_items
from lydian.training.collect import Corpus
from lydian.training.learner import Learner
from lydian.training.loop import Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from tests.training.toys import Letters, llama, sequence

LIKED = "fghi"
DISLIKED = "jklm"


def log(labels: tuple[bool, bool] = (True, False)) -> list[Feedback]:
    """Thumbs on `ab` for some questions and on `cd` for others; no question has both."""
    return [
        Feedback(id=question, messages=(Message(role="user", content=question),), reply=reply, is_desirable=is_up)
        for questions, reply, is_up in ((LIKED, "ab", labels[0]), (DISLIKED, "cd", labels[1]))
        for question in questions
    ]


def trained(objective: Callable[..., Loss], rows: list[Feedback]) -> Policy:
    learner = Learner(
        Policy(llama()),
        objective=functools.partial(objective, beta=0.5),
        normaliser="sequence_mean",
        optimiser=OptimiserSettings(learning_rate=3e-3),
    )
    train(learner, Corpus(encode_items(rows, Letters())), StageSettings(epochs=30), Quiet(), seed=0)
    return learner.policy


def log_ratio(policy: Policy, question: str, reply: str) -> float:
    """Σ log π − log π_reference over the reply, by transformers alone; the reference is the first model."""
    found, sums = sequence(question, reply), []
    for model in (policy.model, llama()):
        with torch.no_grad():
            logprobs = model(torch.tensor([found.tokens])).logits[0, :-1].log_softmax(-1)
        picked = logprobs.gather(1, torch.tensor(found.tokens[1:])[:, None]).squeeze(1)
        sums.append(picked[torch.tensor(found.trained[1:])].sum().item())
    return sums[0] - sums[1]


def has_learned(policy: Policy) -> bool:
    """For every question the liked reply gained more than two nats on the disliked one, whichever it was shown with."""
    return all(log_ratio(policy, q, "ab") - log_ratio(policy, q, "cd") > 2 for q in LIKED + DISLIKED)


@pytest.mark.parametrize("objective", [kto, bco])
def test_thumbs_teach(objective: Callable[..., Loss]):
    assert has_learned(trained(objective, log()))


@pytest.mark.parametrize("objective", [kto, bco])
def test_thumbs_the_other_way_do_not(objective: Callable[..., Loss]):
    assert not has_learned(trained(objective, log((False, True))))


def test_a_loss_of_the_other_sign_does_not():
    @functools.wraps(kto)
    def turned(*args, **settings):
        loss, statistics = kto(*args, **settings)
        return Loss(-loss, statistics)

    assert not has_learned(trained(turned, log()))
