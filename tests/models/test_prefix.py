"""Prefix tuning: PEFT's own logprobs in both layouts, gradients to the prefix alone, publishing and saving."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from lydian.data.forest import plant, site_weights
from lydian.data.sequence import Sequence
from lydian.errors import ModelError
from lydian.models import prefix
from lydian.models.adapters import AdapterSettings, add_adapter
from lydian.models.critic import _critic
from lydian.models.heads import Head
from lydian.models.load import load_model
from lydian.models.merge import base_tensors, merged_tensors
from lydian.models.policy import Policy
from lydian.models.prefix import PREFIX, prefix_states
from lydian.models.save import save_model
from lydian.models.weights import weights_of
from tests.models.families import make
from tests.models.test_save import tokenizer

SETTINGS = AdapterSettings(kind="prefix", prefix_tokens=5)
FAMILIES = pytest.mark.parametrize("family", ["llama", "llama_tied", "qwen2", "qwen3", "gpt2", "mistral_sliding"])
HEAD = (3, 14, 15, 92)
SEQUENCES = [  # two branches of one prompt, and a sequence of its own
    Sequence(id=str(k), group="g", tokens=tokens, trained=(False, *[True] * (len(tokens) - 1)))
    for k, tokens in enumerate([(*HEAD, 65, 35, 89), (*HEAD, 79, 32), (38, 46, 26, 43)])
]


def prefixed(family, seed=0):
    torch.manual_seed(seed)
    model = add_adapter(make(family), SETTINGS)
    with torch.no_grad():  # as training would move it
        parameter = next(p for p in model.parameters() if p.requires_grad)
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


def by_peft(model):
    """log π of each sequence's tokens but the first, by PEFT's own forward pass."""
    found = {}
    for sequence in SEQUENCES:
        tokens = torch.tensor([sequence.tokens])
        with torch.no_grad():
            logprobs = model(input_ids=tokens).logits.log_softmax(-1)[0, :-1]
        found[sequence.id] = logprobs.gather(1, tokens[0, 1:, None])[:, 0]
    return found


def by_policy(policy):
    found = {}
    for forest in plant(SEQUENCES, site_weights(SEQUENCES, "token_mean"), layout=policy.layout):
        logprobs, _ = policy.logprobs(forest)
        for k, name in enumerate(forest.sequence_ids):
            found[name] = logprobs[forest.sites.sequence == k]
    return found


@FAMILIES
@pytest.mark.parametrize("layout", ["single", "shared"])
def test_the_policy_computes_what_peft_does(family, layout):
    if family == "mistral_sliding":
        pytest.skip("PEFT's cache has no window; see the next test")
    model = prefixed(family)
    with torch.no_grad():
        own = by_policy(Policy(model, layout=layout))
    for name, expected in by_peft(model).items():
        torch.testing.assert_close(own[name], expected, atol=1e-4, rtol=1e-5)


@FAMILIES
def test_both_layouts_agree_so_sharing_is_allowed(family):
    assert Policy(prefixed(family)).layout == "shared"


def test_the_prefix_matters():
    with_prefix, without = by_peft(prefixed("llama")), by_peft(make("llama"))
    assert max((with_prefix[name] - without[name]).abs().max() for name in without) > 0.1


@FAMILIES
def test_a_fresh_prefix_is_what_the_base_computes_for_tokens_in_front(family, monkeypatch):
    """As if those tokens stood before the text: compared with the base on the longer text."""
    front = torch.tensor([7, 50, 33, 8, 90])
    monkeypatch.setattr(prefix.torch, "randint", lambda *given, **named: front)
    policy = Policy(add_adapter(make(family), SETTINGS), layout="single")
    monkeypatch.undo()
    with torch.no_grad():
        own = by_policy(policy)
        for sequence in SEQUENCES:
            tokens = torch.tensor([[*front.tolist(), *sequence.tokens]])
            logprobs = make(family)(tokens).logits.log_softmax(-1)[0, 5:-1]
            expected = logprobs.gather(1, tokens[0, 6:, None])[:, 0]
            torch.testing.assert_close(own[sequence.id], expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("layout", ["single", "shared"])
def test_gradients_reach_the_prefix_alone(layout):
    """The directional derivative against a central difference, of a random function of the hidden states (in fp64,
    but that RMSNorm computes in fp32)."""
    model = prefixed("llama").double()
    policy = Policy(model, layout=layout)
    (parameter,) = [p for p in model.parameters() if p.requires_grad]
    forests = plant(SEQUENCES, site_weights(SEQUENCES, "token_mean"), layout=layout)

    def loss():
        generator = torch.Generator().manual_seed(4)
        states = [policy.states(forest)[forest.sites.source] for forest in forests]
        return sum((x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum() for x in states)

    loss().backward()
    direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sides = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter.add_(direction, alpha=sign * 1e-3)
            sides.append(loss().item())
            parameter.sub_(direction, alpha=sign * 1e-3)
    numeric = (sides[0] - sides[1]) / 2e-3
    assert (parameter.grad * direction).sum().item() == pytest.approx(numeric, rel=5e-3)


def test_it_is_published_beside_the_base():
    model = prefixed("llama")
    weights = weights_of(model, 3)
    assert torch.equal(weights.tensors[PREFIX], prefix_states(model))
    plain = merged_tensors(make("llama"))
    assert weights.tensors.keys() - {PREFIX} == plain.keys()
    assert all(torch.equal(weights.tensors[name], plain[name]) for name in plain)
    assert weights_of(model, 3, with_adapter=False).tensors.keys() == plain.keys()
    before = weights.tensors[PREFIX].clone()
    next(p for p in model.parameters() if p.requires_grad).data.add_(1.0)
    assert torch.equal(weights.tensors[PREFIX], before)
    assert base_tensors(model).keys() == plain.keys()


def test_it_cannot_be_merged(tmp_path):
    with pytest.raises(ModelError, match="a prefix"):
        merged_tensors(prefixed("llama"))
    with pytest.raises(ModelError, match="a prefix"):
        save_model(prefixed("llama"), tokenizer(), tmp_path / "merged", merge=True)


def test_it_is_read_by_peft_alone_and_continued(tmp_path):
    save_model(make("llama"), tokenizer(), tmp_path / "base", merge=False)
    torch.manual_seed(0)
    model = load_model(tmp_path / "base", adapter=SETTINGS).model
    save_model(model, tokenizer(), tmp_path / "adapter", merge=False)
    expected = by_peft(model)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    for name, values in by_peft(PeftModel.from_pretrained(base, tmp_path / "adapter")).items():
        torch.testing.assert_close(values, expected[name], atol=1e-6, rtol=0)
    again = load_model(tmp_path / "adapter", adapter="continue").model
    assert [p.shape for p in again.parameters() if p.requires_grad] == [(5, 3 * 2 * 2 * 8)]
    for name, values in by_peft(again).items():
        torch.testing.assert_close(values, expected[name], atol=1e-6, rtol=0)
    with pytest.raises(ModelError, match="adapter='continue'"):
        load_model(tmp_path / "adapter")


def test_recomputed_layers_would_drop_it():
    """transformers passes no cache where it recomputes activations. A critic recomputes what its
    policy does, with a prefix nothing."""
    policy = Policy(prefixed("llama"))
    policy.recompute(0)
    with pytest.raises(ModelError, match="activations to recompute"):
        policy.recompute(1)
    base = Policy(make("llama"))
    base.recompute(3)
    plain, critic = (_critic(model, base, Head("value", 32)) for model in (make("llama"), prefixed("llama")))
    assert (base.num_recomputed, plain.num_recomputed, critic.num_recomputed) == (3, 3, 0)
