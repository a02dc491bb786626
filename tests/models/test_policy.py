"""Layouts compute the same policy on every family: log-probabilities and gradients equal the plain path's."""

from __future__ import annotations

import random
from unittest.mock import Mock

import pytest
import torch

from lydian.data.forest import Forest, Layout, plant, site_weights
from lydian.data.sequence import Sequence
from lydian.errors import ModelError
from lydian.models import policy as policy_module
from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.policy import Policy, recomputable_layers
from tests.models.families import FAMILIES, VOCABULARY, make


def group_of_answers(seed: int = 0) -> list[Sequence]:
    """Three prompts, three answers each, longer than the sliding windows; two answers begin alike."""
    rng = random.Random(seed)
    sequences = []
    for g in range(3):
        prompt = [rng.randrange(3, VOCABULARY) for _ in range(4 + 3 * g)]
        start = [rng.randrange(3, VOCABULARY)]
        for k in range(3):
            answer = (start if k else []) + [rng.randrange(3, VOCABULARY) for _ in range(5 + 2 * k)]
            trained = (False,) * len(prompt) + (True,) * len(answer)
            sequences.append(Sequence(id=f"{g}/{k}", group=str(g), tokens=(*prompt, *answer), trained=trained))
    return sequences


def plain_logprobs(model, sequence: Sequence) -> torch.Tensor:
    """What transformers alone computes: one sequence, no mask of ours, log-softmax over full logits, shifted here."""
    logits = model(torch.tensor([sequence.tokens])).logits[0].float()
    targets = torch.tensor(sequence.tokens[1:])
    logprobs = logits[:-1].log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    return logprobs[torch.tensor(sequence.trained[1:])]


def forests_of(sequences: list[Sequence], layout: Layout) -> list[Forest]:
    weights = site_weights(sequences, "sequence_mean")
    return plant(sequences, weights, layout=layout, row_tokens=48, batch_tokens=96)


@pytest.mark.parametrize("layout", ["shared", "packed", "single"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_gradients_equal_the_plain_path(family: str, layout: Layout):
    """Loss Σ weight · (−log π): same value per token to 1e-5 and same gradient of every parameter to 1e-4 relative."""
    model = make(family)
    sequences = group_of_answers()
    losses = [-plain_logprobs(model, s).mean() / len(sequences) for s in sequences]
    torch.stack(losses).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    policy = Policy(model, layout=layout)
    for forest in forests_of(sequences, layout):
        logprobs, _ = policy.logprobs(forest)
        (-forest.sites.weight * logprobs).sum().backward()
        for k, sequence_id in enumerate(forest.sequence_ids):
            sequence = next(s for s in sequences if s.id == sequence_id)
            torch.testing.assert_close(
                logprobs[forest.sites.sequence == k].detach(),
                plain_logprobs(model, sequence).detach(),
                atol=2e-5,
                rtol=0,
            )
    for name, parameter in model.named_parameters():
        scale = expected[name].abs().max().clamp(min=1e-6)
        assert ((parameter.grad - expected[name]).abs().max() / scale) < 1e-4, name


@pytest.mark.parametrize("family", FAMILIES)
def test_layout_is_found_on_the_model_itself(family: str):
    assert Policy(make(family)).layout == "shared"


def test_a_model_that_ignores_masks_gets_the_single_layout(monkeypatch: pytest.MonkeyPatch):
    """If masks do not reach attention, the probe sees the wrong log-probabilities and falls back to one a row."""
    monkeypatch.setattr(policy_module, "attention_masks", lambda *args: None)
    assert Policy(make("llama")).layout == "single"


def test_a_head_that_is_not_the_output_matrix_is_refused():
    model = make("llama")
    model.lm_head.register_forward_hook(lambda module, inputs, output: output.tanh() * 5)
    with pytest.raises(ModelError, match="soft cap"):
        Policy(model)


def test_temperature_divides_the_logits():
    """At temperature T the policy is softmax(logits / T), computed here from transformers' logits."""
    model = make("llama")
    sequence = group_of_answers()[0]
    cooled = Sequence(
        **{name: getattr(sequence, name) for name in ("id", "group", "tokens", "trained")}, temperature=0.5
    )
    (forest,) = forests_of([cooled], "shared")
    logprobs, entropy = Policy(model).logprobs(forest)
    logits = model(torch.tensor([sequence.tokens])).logits[0, :-1][torch.tensor(sequence.trained[1:])] / 0.5
    expected = logits.log_softmax(-1)
    targets = torch.tensor(sequence.tokens[1:])[torch.tensor(sequence.trained[1:])]
    torch.testing.assert_close(logprobs, expected.gather(1, targets[:, None]).squeeze(1), atol=2e-5, rtol=0)
    torch.testing.assert_close(entropy, -(expected.exp() * expected).sum(-1), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [*FAMILIES, "lora"])
def test_recomputed_layers_change_no_number(family: str, dtype: torch.dtype):
    """Gradients to the last bit, with none, one and all layers recomputed; and the layers are those that were asked."""
    sequences = group_of_answers()
    expected, forwards = None, []
    for num_recomputed in (0, 1, 3, 0):
        torch.manual_seed(0)
        model = make("llama") if family == "lora" else make(family)
        model = add_adapter(model, AdapterSettings(rank=2, alpha=4.0)) if family == "lora" else model
        policy = Policy(model, layout="shared", compute_dtype=dtype)
        policy.recompute(num_recomputed)
        assert policy.num_recomputed == num_recomputed
        calls = []
        for layer in recomputable_layers(model):
            calls.append(Mock(return_value=None))
            norm = next(m for m in layer.modules() if "norm" in type(m).__name__.lower())
            norm.register_forward_pre_hook(calls[-1])
        forest = forests_of(sequences, "shared")[0]
        (-forest.sites.weight * policy.logprobs(forest)[0]).sum().backward()
        gradients = [p.grad for p in policy.trainable().values()]
        expected = expected or gradients
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
        forwards.append([call.call_count for call in calls])
    assert forwards == [[1, 1, 1], [2, 1, 1], [2, 2, 2], [1, 1, 1]]
