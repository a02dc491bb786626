"""Adapters of every kind in rounds of sampling and training: the engine samples from what the learner trains, and the
base under the adapter stays what it was, bit for bit."""

import pytest
import torch

from lydian.data.forest import plant, site_weights
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Sampling
from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.merge import base_tensors
from lydian.models.policy import Policy
from lydian.models.prefix import prefix_states
from lydian.models.weights import weights_of
from lydian.objectives.advantage import raw_reward
from lydian.objectives.policy_gradient import clip
from lydian.rollout.engine import Request
from lydian.rollout.local import LocalEngine
from lydian.training.collect import Rollouts
from lydian.training.credit import PolicyGradient
from lydian.training.learner import Learner
from lydian.training.optim import OptimiserSettings
from lydian.verifiers.verifier import make_verifier
from tests.models.families import make
from tests.training.toys import Letters, engine, llama, problem

KINDS = {
    "lora": AdapterSettings(rank=4),
    "rslora": AdapterSettings(rank=4, rslora=True),
    "dora": AdapterSettings(kind="dora", rank=4),
    "ia3": AdapterSettings(kind="ia3"),
    "prefix": AdapterSettings(kind="prefix", prefix_tokens=3),
    "lora_with_rows": AdapterSettings(rank=4),
}
EACH = pytest.mark.parametrize("kind", KINDS)


def wrapped(kind):
    model = llama()
    torch.manual_seed(5)
    return add_adapter(model, KINDS[kind], token_ids=(4, 9) if kind == "lora_with_rows" else ())


def rollouts(of):
    return Rollouts(
        engine=of,
        template=Letters(),
        verifier=make_verifier("pattern", pattern="[a-e]"),
        problems=[problem(letters) for letters in ("abc", "hello", "zz", "qrs")],
        sampling=Sampling(max_tokens=8),
        num_samples=4,
        problems_per_round=0,
        credit=PolicyGradient(advantage=raw_reward),
        seed=0,
    )


@EACH
def test_rollouts_and_training_leave_the_base_alone_and_the_engine_samples_from_the_adapter(kind):
    """Three rounds at a rate that moves logprobs by nats. After each publication the logprobs that the engine drew
    with equal the learner's own to 1e-4; the base's tensors are compared as bits, in the learner after all of it."""
    model = wrapped(kind)
    before = {name: tensor.clone() for name, tensor in base_tensors(model).items()}
    trained = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    learner = Learner(
        Policy(model), objective=clip, normaliser="token_mean", optimiser=OptimiserSettings(learning_rate=0.1)
    )
    source = rollouts(engine())
    gaps = []
    for round in range(3):
        source.load(learner.publish())
        statistics = learner.accumulate(source.assign(source.collect(round).items))
        gaps.append(statistics["behaviour_gap"])
        assert learner.step(0.0)["gradient_norm"] > 0
    assert max(gaps) < 1e-4
    after = base_tensors(model)
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    moved = {name for name, p in model.named_parameters() if p.requires_grad and not torch.equal(p, trained[name])}
    assert moved == trained.keys()
    stale = rollouts(engine())  # whose weights are the base's: the comparison above can fail
    assert learner.accumulate(stale.assign(stale.collect(9).items))["behaviour_gap"] > 1e-2


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "mistral_sliding", "gemma3"])
def test_a_prefix_is_in_front_of_every_completion_of_the_engine(family):
    """Several prompts of several lengths and samples, more than slots, prompts in chunks: logprobs as the policy's."""
    torch.manual_seed(5)
    model = add_adapter(make(family), AdapterSettings(kind="prefix", prefix_tokens=3))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.5)
    sampler = LocalEngine(make(family), stop_tokens=frozenset({2}), decode=lambda ids: "")
    sampler.load(weights_of(model, 1))
    sampling = Sampling(max_tokens=6)
    requests = [
        Request(problem_id=str(n), prompt=tuple(range(5, 5 + n)), num_samples=3, sampling=sampling) for n in (2, 9, 4)
    ]
    policy = Policy(model, layout="single")
    for request, completions in zip(requests, sampler.generate(requests), strict=True):
        for completion in completions:
            expected = token_logprobs(policy, request.prompt, completion.tokens)
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=1e-4)
    drawn = sampler.generate(requests)
    sampler.load(weights_of(model, 2, with_adapter=False))
    assert prefix_states(model) is not None and sampler.generate(requests) != drawn


def token_logprobs(policy, prompt, tokens):
    whole = Sequence(
        id="0", group="0", tokens=(*prompt, *tokens), trained=(False,) * len(prompt) + (True,) * len(tokens)
    )
    (forest,) = plant([whole], site_weights([whole], "token_mean"), layout=policy.layout)
    with torch.no_grad():
        return policy.logprobs(forest)[0]
