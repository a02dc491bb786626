"""Chunked log-probabilities against the full softmax: values, both gradients, any chunking."""

from __future__ import annotations

import pytest
import torch

from lydian.objectives import logprobs as module
from lydian.objectives.logprobs import token_logprobs


def inputs(n: int = 7, d: int = 5, v: int = 11) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, d, generator=g)
    output = torch.randn(v, d, generator=g)
    target = torch.randint(v, (n,), generator=g)
    temperature = torch.tensor([0.5, 1.0, 1.5, 1.0, 2.0, 0.7, 1.0])[:n]
    return hidden, output, target, temperature


def plain(hidden, output, target, temperature):
    logprobs = ((hidden @ output.T) / temperature[:, None]).log_softmax(-1)
    return logprobs.gather(1, target[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize(("chunk_elements", "cache_elements"), [(1, 1), (22, 1000), (33, 22), (10_000, 33)])
@pytest.mark.parametrize("wants", ["logprobs", "entropy", "both"])
def test_values_and_gradients_equal_the_full_softmax(
    chunk_elements: int, cache_elements: int, wants: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "CACHE_ELEMENTS", cache_elements)
    hidden, output, target, temperature = inputs()
    results = []
    for function in (plain, lambda *a: token_logprobs(*a, chunk_elements=chunk_elements)):
        h, w = hidden.clone().requires_grad_(), output.clone().requires_grad_()
        logprobs, entropy = function(h, w, target, temperature)
        weights = torch.linspace(-1, 1, len(target))
        loss = (logprobs * weights).sum() * (wants != "entropy") + (entropy * weights).sum() * (wants != "logprobs")
        loss.backward()
        results.append((logprobs.detach(), entropy.detach(), h.grad, w.grad))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_frozen_output_gets_no_gradient():
    hidden, output, target, temperature = inputs()
    hidden.requires_grad_()
    token_logprobs(hidden, output, target, temperature)[0].sum().backward()
    assert output.grad is None and hidden.grad is not None


def test_uniform_logits_by_hand():
    """Zero hidden state: every token has probability 1/11, entropy log 11."""
    hidden, output, target, temperature = inputs()
    logprobs, entropy = token_logprobs(torch.zeros_like(hidden), output, target, temperature)
    torch.testing.assert_close(logprobs, torch.full((7,), -2.397895))
    torch.testing.assert_close(entropy, torch.full((7,), 2.397895))


def test_bfloat16_inputs_give_fp32_results():
    hidden, output, target, temperature = inputs()
    logprobs, entropy = token_logprobs(hidden.bfloat16(), output.bfloat16(), target, temperature)
    assert logprobs.dtype == entropy.dtype == torch.float32


def test_no_sites_is_no_error():
    hidden, output, target, temperature = inputs()
    logprobs, entropy = token_logprobs(hidden[:0], output, target[:0], temperature[:0])
    assert logprobs.shape == entropy.shape == (0,)


def test_never_holds_sites_by_vocabulary(monkeypatch: pytest.MonkeyPatch):
    """Largest products and logits made, forward and backward, with room for three rows, and two of them in fp32."""
    sizes: dict[str, list[int]] = {"_products": [], "_logits": []}

    def recording(name: str):
        original = getattr(module, name)

        def function(*args):
            for made in original(*args):
                sizes[name].append(made[1].numel())
                yield made

        return function

    for name in sizes:
        monkeypatch.setattr(module, name, recording(name))
    monkeypatch.setattr(module, "CACHE_ELEMENTS", 22)
    hidden, output, target, temperature = inputs()
    hidden.requires_grad_()
    token_logprobs(hidden, output, target, temperature, chunk_elements=33)[0].sum().backward()
    assert sizes == {"_products": [33, 33, 11] * 2, "_logits": [22, 11, 22, 11, 11] * 2}


def test_under_autocast_the_backward_pass_makes_the_same_logits_again(monkeypatch: pytest.MonkeyPatch):
    """In bf16, bit for bit: probabilities from other logits than the normaliser's would not sum to one. The gradients
    keep the inputs' type."""
    made: list[torch.Tensor] = []
    original = module._logits

    def recording(*args):
        for part, logits, product in original(*args):
            made.append(logits.clone())
            yield part, logits, product

    monkeypatch.setattr(module, "_logits", recording)
    hidden, output, target, temperature = inputs()
    hidden.requires_grad_(), output.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logprobs, _ = token_logprobs(hidden, output, target, temperature)
    logprobs.sum().backward()
    forward, backward = made
    assert torch.equal(forward, backward)
    assert not torch.equal(forward, hidden @ output.T / temperature[:, None])
    assert hidden.grad.dtype == output.grad.dtype == torch.float32


@pytest.mark.parametrize("wants", ["logprobs", "entropy"])
def test_under_autocast_values_and_gradients_are_near_the_full_softmax(wants: str, monkeypatch: pytest.MonkeyPatch):
    """Products and gradients of logits are rounded to bf16, at 2⁻⁹: measured within 2.7 % of the largest number."""
    monkeypatch.setattr(module, "CACHE_ELEMENTS", 22)
    hidden, output, target, temperature = inputs()
    results = []
    for function in (plain, lambda *a: token_logprobs(*a, chunk_elements=33)):
        h, w = hidden.clone().requires_grad_(), output.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=function is not plain):
            values = dict(zip(("logprobs", "entropy"), function(h, w, target, temperature), strict=True))[wants]
        (values * torch.linspace(-1, 1, len(target))).sum().backward()
        results.append((values.detach(), h.grad, w.grad))
    for expected, got in zip(*results, strict=True):
        assert (got - expected).abs().max() < 0.05 * expected.abs().max()
