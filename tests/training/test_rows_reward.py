"""What a step of a reward model computes on a forest is what transformers and the equation give, pair by pair.

The replies share prompts and beginnings, so that trees are shared: one is even the beginning of the other, and only the
stop token tells them apart."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import logsigmoid, softplus

from lydian.data.labelled import Stepwise
from lydian.data.problems import Message, Preference
from lydian.models.heads import Head
from lydian.models.policy import Policy
from lydian.text.encode import encode_items
from lydian.training.algorithms import ALGORITHMS
from lydian.training.learner import Batching
from lydian.training.settings import StageSettings
from lydian.training.stage import make_learner
from tests.training.toys import STOP, Letters, ids_of, llama

BATCHINGS = [Batching(), Batching(batch_tokens=12)]


def ask(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


PAIRS = [
    Preference(id="0", messages=ask("fgh"), chosen="abc", rejected="abcd", metadata={"margin": 0.25}),
    Preference(id="1", messages=ask("fgh"), chosen="abcd", rejected="e", metadata={"margin": 1.0}),
    Preference(id="2", messages=ask("fg"), chosen="h", rejected="ha", metadata={"margin": 0.0}),
]


def with_random_head() -> Policy:
    head = Head("score", 32)
    torch.manual_seed(1)
    torch.nn.init.normal_(head.linear.weight)
    torch.nn.init.normal_(head.linear.bias)
    return Policy(llama(), head=head)


def score(policy: Policy, question: str, reply: str, end: tuple[int, ...] = (STOP,)) -> torch.Tensor:
    """One text a time through the unmodified model: the head on the last hidden state."""
    tokens = torch.tensor([(*ids_of(question + reply), *end)])
    return policy.head(policy.model.model(input_ids=tokens).last_hidden_state[0, -1:])[0]


def accumulated(name: str, policy: Policy, items, batching: Batching, **objective: float) -> float:
    row = ALGORITHMS[name]
    settings = StageSettings(normaliser=row.defaults["normaliser"], batching=batching)
    return make_learner(policy, row, settings, objective=objective).accumulate(encode_items(items, Letters()))["loss"]


def same_gradients(one: Policy, other: Policy) -> bool:
    pairs = zip(one.trainable().items(), other.trainable().items(), strict=True)
    return all(
        name == name2
        and (p.grad is None) == (q.grad is None)
        and (p.grad is None or torch.allclose(p.grad, q.grad, atol=2e-6))
        for (name, p), (name2, q) in pairs
    )


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("name", ["reward_model", "reward_model_margin"])
def test_pairs_on_shared_trees(name: str, batching: Batching):
    policy, plain = with_random_head(), with_random_head()
    loss = accumulated(name, policy, PAIRS, batching, centring_coef=0.01)
    expected = torch.zeros(())
    for pair in PAIRS:
        question = pair.messages[0].content
        chosen, rejected = score(plain, question, pair.chosen), score(plain, question, pair.rejected)
        margin = float(pair.metadata["margin"]) if name == "reward_model_margin" else 0.0
        expected = expected - logsigmoid(chosen - rejected - margin) / 3 + 0.01 * (chosen + rejected) ** 2 / 3
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    assert same_gradients(policy, plain)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_steps_on_shared_trees(batching: Batching):
    """The mean over the six labelled steps of log(1 + e^r) − label · r, each read where its step ends."""
    items = [
        Stepwise(id="0", messages=ask("fgh"), steps=("ab", "cd"), labels=(1.0, 0.0)),
        Stepwise(id="1", messages=ask("fgh"), steps=("ab", "e", "k"), labels=(1.0, 0.5, 0.0)),
        Stepwise(id="2", messages=ask("fgh"), steps=("ab", "cd"), labels=(None, 1.0)),
    ]
    policy, plain = with_random_head(), with_random_head()
    loss = accumulated("process_reward_model", policy, items, batching)
    ends = [("ab", 1.0), ("abcd", 0.0), ("ab", 1.0), ("abe", 0.5), ("abek", 0.0), ("abcd", 1.0)]
    losses = [softplus(r) - label * r for text, label in ends for r in [score(plain, "fgh", text, ())]]
    expected = torch.stack(losses).mean()
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    assert same_gradients(policy, plain)


def test_no_vocabulary_product_is_made(monkeypatch: pytest.MonkeyPatch):
    policy = with_random_head()

    def refuse(*_: object) -> None:
        raise AssertionError("logprobs were asked for")

    monkeypatch.setattr(policy, "site_logprobs", refuse)
    assert accumulated("reward_model", policy, PAIRS, Batching()) > 0
