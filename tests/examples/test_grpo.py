"""The flat script is the row `grpo`."""

from __future__ import annotations

import random

import pytest
import torch

from examples import grpo
from lydian.data.trajectory import Sampling
from lydian.rollout.local import LocalEngine
from tests.examples.rows import RATE, STOP, Numbers, assert_equal, ids, problem, rollouts, run_row, settings_of
from tests.models.families import VOCABULARY, make

TEMPERATURE = 0.7


@pytest.mark.parametrize(("rounds", "epochs"), [(3, 1), (1, 3)])
def test_equals_the_row(rounds: int, epochs: int):
    """Three steps on the samples of the library's own engine: each on fresh ones, or all on the same, where the second
    and third step have ratios other than 1 and clip some of them."""
    rng = random.Random(0)
    problems = [problem(str(k), ids(rng, 3 + k % 3)) for k in range(4 * rounds)]
    settings = settings_of("grpo", rounds=rounds, epochs=epochs, problems_per_round=4, num_samples=4)
    engine = LocalEngine(make("llama"), stop_tokens=frozenset({STOP, 3, 4, 5, 6, 7}), decode=Numbers().decode)
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=12)
    journal, theirs = run_row("grpo", rollouts("grpo", engine, problems, settings, sampling), settings)
    lengths = {
        len(completion) for groups in journal.rounds for _, completions, _ in groups for completion in completions
    }
    assert len(lengths) > 2, "sequences of unlike lengths, or a token mean would pass for a sequence mean"
    model = make("llama")
    steps = grpo.train(
        model, journal.rounds.__getitem__, rounds=rounds, rate=RATE, temperature=TEMPERATURE, epochs=epochs
    )
    assert_equal(list(steps), journal.metrics, model, theirs)
    if epochs > 1:
        clipped = journal.metrics[-1]["clipped_low"] + journal.metrics[-1]["clipped_high"]
        assert 0.05 < clipped < 0.95


def test_advantages_by_hand():
    """Rewards 1, 0, 0, 0: mean 1/4, squared deviations 9/16 + 3/16, over G − 1 = 3 gives std 1/2, so 1.5 and −0.5."""
    assert grpo.advantages([1.0, 0.0, 0.0, 0.0]).tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert grpo.advantages([1.0, 1.0]).tolist() == [0.0, 0.0]


def test_a_round_without_advantages_makes_no_step():
    model = make("llama")
    steps = grpo.train(
        model, lambda round: [((5, 6), [(7, STOP), (8,)], [1.0, 1.0])], rounds=2, rate=RATE, temperature=1.0
    )
    assert list(steps) == []


def test_sampling_takes_the_full_distribution():
    """With all tokens almost alike likely, 2000 draws reach every one of the 97: each is missed with probability 1e-9.
    Almost, because among equals a cut to the most likely tokens would keep all."""
    model = make("llama")
    model.lm_head.weight.data.mul_(1e-4)
    torch.manual_seed(0)
    (drawn,) = grpo.sample(model, [(5, 6, 7)], 2000, 1, STOP)
    assert {completion[0] for completion in drawn} == set(range(VOCABULARY))


def test_padding_does_not_change_a_sample():
    """With logits a hundredfold there is no chance left: each prompt continues among longer ones as it does alone."""
    model = make("llama")
    model.lm_head.weight.data.mul_(100)
    rng = random.Random(0)
    prompts = [ids(rng, 1 + k) for k in range(8)]
    together = grpo.sample(model, prompts, 2, 5, STOP)
    assert together == [grpo.sample(model, [prompt], 2, 5, STOP)[0] for prompt in prompts]
    assert len(set(map(tuple, together))) > 1


def test_completions_end_with_the_stop_token(monkeypatch: pytest.MonkeyPatch):
    """What generate fills up after the stop token is cut away, the token itself kept; the prompt is not part of it."""
    model = make("llama")
    drawn = torch.tensor([[0, 5, 8, STOP, STOP], [0, 5, 8, 9, 10], [6, 7, STOP, STOP, STOP], [6, 7, 8, 9, STOP]])
    monkeypatch.setattr(model, "generate", lambda *args, **settings: drawn)
    assert grpo.sample(model, [(5,), (6, 7)], 2, 3, STOP) == [[(8, STOP), (8, 9, 10)], [(STOP,), (8, 9, STOP)]]
