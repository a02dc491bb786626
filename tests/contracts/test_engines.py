"""What every engine must do. A new engine is added to ENGINES; `scripted` has no distribution and keeps to the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from lydian.data.forest import plant, site_weights
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Completion, Finish, Sampling
from lydian.errors import EngineError
from lydian.models.policy import Policy
from lydian.models.weights import Weights, weights_of
from lydian.rollout.engine import Engine, Request
from lydian.rollout.local import LocalEngine
from lydian.rollout.scripted import ScriptedEngine
from tests.models.families import FAMILIES, make

STOP = frozenset({3, 4})


def text_of(tokens) -> str:
    return "".join(chr(ord("a") + t % 26) for t in tokens)


def local(family: str, memory_bytes: int = 1 << 20) -> LocalEngine:
    return LocalEngine(make(family), stop_tokens=STOP, decode=text_of, memory_bytes=memory_bytes)


ENGINES: dict[str, Callable[[str], Engine]] = {"local": local}


def requests(sampling: Sampling, num_samples: int = 3) -> list[Request]:
    return [
        Request(problem_id=f"p{i}", prompt=tuple(range(5, 8 + 3 * i)), num_samples=num_samples, sampling=sampling)
        for i in range(4)
    ]


@functools.cache
def learner_policy(family: str) -> Policy:
    return Policy(make(family))


def learner_logprobs(family: str, request: Request, completion: Completion, temperature: float) -> torch.Tensor:
    tokens = request.prompt + completion.tokens
    trained = (False,) * len(request.prompt) + (True,) * len(completion.tokens)
    sequence = Sequence(id="x", group="x", tokens=tokens, trained=trained, temperature=temperature)
    (forest,) = plant([sequence], site_weights([sequence], "token_mean"))
    with torch.no_grad():
        return learner_policy(family).logprobs(forest)[0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ENGINES)
def test_logprobs_are_the_learners(engine: str, family: str, temperature: float):
    """For the same tokens at the same temperature; a wrong temperature would be off by whole nats."""
    asked = requests(Sampling(temperature=temperature, max_tokens=10), num_samples=2)
    for request, completions in zip(asked, ENGINES[engine](family).generate(asked), strict=True):
        for completion in completions:
            expected = learner_logprobs(family, request, completion, temperature)
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=3e-5, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_truncated_sampling_reports_the_truncated_distribution(engine: str):
    """With top_k = 2 each logprob is log p − log(p₁ + p₂) of the two likeliest tokens under the full distribution."""
    sampling = Sampling(temperature=0.7, top_k=2, max_tokens=6)
    (request, *_) = asked = requests(sampling, num_samples=2)
    for completion in ENGINES[engine]("llama").generate(asked)[0]:
        model = make("llama")
        logits = model(torch.tensor([request.prompt + completion.tokens])).logits[0, len(request.prompt) - 1 : -1] / 0.7
        top = logits.topk(2)
        for t, (token, logprob) in enumerate(zip(completion.tokens, completion.logprobs, strict=True)):
            assert token in top.indices[t].tolist()
            expected = logits[t, token] - top.values[t].logsumexp(-1)
            assert logprob == pytest.approx(expected.item(), abs=3e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_sample_whatever_the_batch(engine: str):
    """Order of requests, number of slots, and asking for later samples alone change nothing."""
    asked = requests(Sampling(max_tokens=12, seed=5), num_samples=4)
    whole = ENGINES[engine]("llama").generate(asked)
    narrow = ENGINES[engine]("llama")
    if isinstance(narrow, LocalEngine):
        narrow = local("llama", memory_bytes=18_000)  # one slot
    backwards = narrow.generate(asked[::-1])[::-1]
    assert [[c.tokens for c in group] for group in whole] == [[c.tokens for c in group] for group in backwards]
    later = Request(problem_id="p1", prompt=asked[1].prompt, num_samples=2, sampling=asked[1].sampling, first_sample=2)
    (tail,) = ENGINES[engine]("llama").generate([later])
    assert [c.tokens for c in tail] == [c.tokens for c in whole[1][2:]]


@pytest.mark.parametrize("engine", ENGINES)
def test_samples_differ_by_seed_problem_and_index(engine: str):
    first = ENGINES[engine]("llama").generate(requests(Sampling(max_tokens=12, seed=1)))
    second = ENGINES[engine]("llama").generate(requests(Sampling(max_tokens=12, seed=2)))
    assert len({c.tokens for c in first[0]}) > 1
    assert [c.tokens for c in first[0]] != [c.tokens for c in second[0]]


@pytest.mark.parametrize("engine", ENGINES)
def test_greedy_takes_the_likeliest_token(engine: str):
    (request, *_) = asked = requests(Sampling(temperature=0.0, max_tokens=6), num_samples=1)
    (completion,) = ENGINES[engine]("llama").generate(asked)[0]
    tokens = list(request.prompt)
    for token in completion.tokens:
        assert token == make("llama")(torch.tensor([tokens])).logits[0, -1].argmax().item()
        tokens.append(token)
    assert completion.logprobs == (0.0,) * len(completion.tokens)


@pytest.mark.parametrize("engine", ENGINES)
def test_stop_tokens_stop_strings_and_length(engine: str):
    """A completion ends at its first stop token, which is part of it, or where a stop string appears, or is cut."""
    seen = set()
    for group in ENGINES[engine]("llama").generate(requests(Sampling(temperature=1.5, max_tokens=60), num_samples=8)):
        for completion in group:
            seen.add(completion.finish)
            assert not STOP & set(completion.tokens[:-1])
            assert (completion.tokens[-1] in STOP) == (completion.finish is Finish.STOP)
            assert completion.finish is Finish.STOP or len(completion.tokens) == 60
    assert seen == {Finish.STOP, Finish.LENGTH}
    sampling = Sampling(temperature=1.5, max_tokens=60, stop=("k",))
    for group in ENGINES[engine]("llama").generate(requests(sampling, num_samples=8)):
        for completion in group:
            text = text_of(completion.tokens)
            assert "k" not in text[:-1]
            assert completion.finish is Finish.LENGTH or completion.tokens[-1] in STOP or text.endswith("k")


@pytest.mark.parametrize("engine", ENGINES)
def test_versions_name_the_weights_and_load_changes_them(engine: str):
    asked = requests(Sampling(max_tokens=8))
    sampler = ENGINES[engine]("llama")
    before = sampler.generate(asked)
    sampler.load(weights_of(make("llama", seed=1), version=7))
    after = sampler.generate(asked)
    assert {c.versions for g in before for c in g} == {((len(c.tokens), 0),) for g in before for c in g}
    assert all(c.versions == ((len(c.tokens), 7),) for g in after for c in g)
    assert sampler.version == 7
    assert [c.tokens for c in before[0]] != [c.tokens for c in after[0]]
    sampler.load(weights_of(make("llama"), version=8))
    assert [c.tokens for g in sampler.generate(asked) for c in g] == [c.tokens for g in before for c in g]


def test_local_refuses_incomplete_weights():
    with pytest.raises(EngineError, match="every parameter"):
        local("llama").load(Weights(version=1, tensors={}, digest=""))


def test_scripted_replays_and_names_what_is_missing():
    engine = ScriptedEngine({"p0": [(9, 3), (9, 9)]}, stop_tokens=STOP)
    asked = Request(problem_id="p0", prompt=(5,), num_samples=2, sampling=Sampling())
    (pair,) = engine.generate([asked])
    assert [c.tokens for c in pair] == [(9, 3), (9, 9)]
    assert [c.finish for c in pair] == [Finish.STOP, Finish.LENGTH]
    with pytest.raises(EngineError, match="at least 3"):
        engine.generate([Request(problem_id="p0", prompt=(5,), num_samples=3, sampling=Sampling())])
