"""What every loss of the catalogue keeps to, found by its return type: a new one is covered at once.

The inputs are made from the names that a loss asks for: three pairs of sequences of 1 to 3 sites, interleaved.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lydian.objectives.loss import Loss
from lydian.training.catalogue import losses
from lydian.training.learner import required_names

LOSSES = losses()
TRAINED = ("logprobs", "entropy", "logits", "class_logits", "score", "value")
"""Names that carry gradients."""
FACTS = {
    *("pair", "is_chosen", "is_desirable", "label", "rank", "kl_estimate", "reward_shift"),
    *("partner_margin", "partner_log_ratio", "pair_margin"),
}
"""Names that are one number a sequence; all others are one a site."""
STOP_GRADIENT = {
    "dft": "weighs by its own detached probability",
    "cispo": "weighs by a detached ratio",
    "gspo_token": "the sequence's ratio is detached",
    "aot_unpaired": "each side of a term holds the other constant, at twice the slope",
    "wpo": "weighs by detached probabilities",
    "sampled_reverse_kl": "the value of k1 with the gradient of k2",
}
"""Losses whose gradient is not the slope of their value, by design; one that does not belong here fails the test."""
ONE_SITE = ("score", "class_logits")
"""Heads that speak once a sequence."""
NUM_PAIRS = 3
VOCABULARY = 5


def sites_of(name: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The sequence of each site, interleaved, and the pair of each sequence."""
    generator = torch.Generator().manual_seed(seed)
    needs = required_names(LOSSES[name].function)
    counts = [1] * (2 * NUM_PAIRS) if set(needs) & set(ONE_SITE) else [3, 1, 2, 3, 1, 2]
    sequence = torch.repeat_interleave(torch.arange(2 * NUM_PAIRS), torch.tensor(counts))
    return sequence[torch.randperm(len(sequence), generator=generator)], torch.arange(2 * NUM_PAIRS) // 2


def inputs_of(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """What the loss asks for, at a point where nothing is clipped on a kink."""
    generator = torch.Generator().manual_seed(seed + 1)
    sequence, pair = sites_of(name, seed)
    n, s = len(sequence), len(pair)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    logprobs = -0.2 - normal(n).abs()
    known = {
        "logprobs": logprobs,
        "entropy": normal(n).abs(),
        "advantage": normal(n),
        "log_collision": -0.1 - normal(n).abs(),
        "value": normal(n),
        "old_value": normal(n),
        "returns": normal(n),
        "score": normal(n),
        "target_score": torch.rand(n, generator=generator, dtype=dtype),
        "logits": normal(n, VOCABULARY),
        "teacher_logits": normal(n, VOCABULARY),
        "class_logits": normal(n, VOCABULARY),
        "sequence": sequence,
        "pair": pair.to(dtype),
        "is_chosen": (torch.arange(s) % 2).to(dtype),
        "is_desirable": (torch.arange(s) % 2).to(dtype),
        "label": (torch.arange(s) % VOCABULARY).to(dtype),
        "rank": (torch.arange(s) % 2).to(dtype),
        "kl_estimate": torch.full((s,), 0.3, dtype=dtype),
        "reward_shift": torch.full((s,), 0.1, dtype=dtype),
        "partner_margin": normal(NUM_PAIRS)[pair],
        "partner_log_ratio": normal(s),
        "pair_margin": normal(NUM_PAIRS).abs()[pair],
    }
    for other in ("behaviour", "proximal", "reference", "teacher"):
        known[f"{other}_logprobs"] = logprobs + 0.3 * normal(n)
    missing = set(required_names(LOSSES[name].function)) - known.keys()
    assert not missing, f"{name} asks for {missing}: add them here and to the learner"
    return {need: known[need] for need in required_names(LOSSES[name].function)}


def call(name: str, inputs: dict[str, Tensor]) -> Loss:
    required = {p.name: 1 for p in inspect.signature(LOSSES[name].function).parameters.values() if _is_bare(p)}
    return LOSSES[name].function(*inputs.values(), **required)


def _is_bare(parameter: inspect.Parameter) -> bool:
    return parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty


def gradients(name: str, inputs: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """d Σ weight · loss by each input that carries gradients."""
    inputs = {k: v.clone().requires_grad_() if k in TRAINED else v for k, v in inputs.items()}
    loss = (weight * call(name, inputs).loss).sum()
    wanted = [k for k in inputs if k in TRAINED]
    found = torch.autograd.grad(loss, [inputs[k] for k in wanted], allow_unused=True)
    return {k: torch.zeros_like(inputs[k]) if g is None else g for k, g in zip(wanted, found, strict=True)}


def slopes(name: str, inputs: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """The same by central differences."""

    def value(changed: dict[str, Tensor]) -> float:
        return (weight * call(name, changed).loss).sum().item()

    found = {}
    for wanted in (k for k in inputs if k in TRAINED):
        slope = torch.zeros_like(inputs[wanted])
        for place in range(slope.numel()):
            step = torch.zeros_like(slope)
            step.view(-1)[place] = 1e-6
            up, down = (value(inputs | {wanted: inputs[wanted] + sign * step}) for sign in (1, -1))
            slope.view(-1)[place] = (up - down) / 2e-6
        found[wanted] = slope
    return found


def are_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.allclose(one[k], other[k], atol=1e-6, rtol=1e-5) for k in one)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_the_slopes(name: str):
    inputs = inputs_of(name)
    weight = torch.linspace(0.5, 1.5, len(next(iter(inputs.values()))), dtype=torch.float64)
    if {"pair", "is_chosen", "is_desirable"} & inputs.keys():  # a normaliser weighs all sites of a unit alike
        weight = torch.ones_like(weight)
    agree = are_close(gradients(name, inputs, weight), slopes(name, inputs, weight))
    assert agree == (name not in STOP_GRADIENT)


@pytest.mark.parametrize("name", LOSSES)
def test_something_is_trained_and_statistics_are_constant(name: str):
    inputs = inputs_of(name)
    n = len(next(iter(inputs.values())))
    found = gradients(name, inputs, torch.ones(n, dtype=torch.float64))
    assert any(gradient.abs().max() > 0 for gradient in found.values())
    loss, statistics = call(name, {k: v.clone().requires_grad_() if k in TRAINED else v for k, v in inputs.items()})
    assert loss.shape == (n,) and loss.isfinite().all()
    for values in statistics.values():
        assert values.shape == (n,) and not values.requires_grad and values.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_sites_of_no_weight_have_no_gradient(name: str):
    """The sites of the second pair weigh nothing: exactly zero there, and nothing else changes."""
    inputs = inputs_of(name)
    sequence, pair = sites_of(name)
    is_dropped = pair[sequence] == 1
    every = torch.ones(len(sequence), dtype=torch.float64)
    some = gradients(name, inputs, torch.where(is_dropped, 0.0, every))
    whole = gradients(name, inputs, every)
    for wanted, gradient in some.items():
        assert (gradient[is_dropped] == 0).all()
        assert torch.equal(gradient[~is_dropped], whole[wanted][~is_dropped])


@pytest.mark.parametrize("name", LOSSES)
def test_any_partition_gives_the_same(name: str):
    """Pair by pair, each in a call of its own: losses, statistics and gradients as in one call."""
    inputs = inputs_of(name)
    sequence, pair = sites_of(name)
    whole, weight = call(name, inputs), torch.ones(len(sequence), dtype=torch.float64)
    whole_gradients = gradients(name, inputs, weight)
    for number in range(NUM_PAIRS):
        is_inside = pair[sequence] == number
        part = {k: part_of(k, v, is_inside, pair == number) for k, v in inputs.items()}
        alone = call(name, part)
        torch.testing.assert_close(alone.loss, whole.loss[is_inside])
        for statistic, values in alone.statistics.items():
            torch.testing.assert_close(values, whole.statistics[statistic][is_inside])
        for wanted, gradient in gradients(name, part, weight[is_inside]).items():
            torch.testing.assert_close(gradient, whole_gradients[wanted][is_inside])


def part_of(name: str, values: Tensor, sites: Tensor, kept: Tensor) -> Tensor:
    """The sites or the sequences of a part; sequences are numbered anew."""
    if name == "sequence":
        return (kept.cumsum(0) - 1)[values[sites]]
    return values[kept if name in FACTS else sites]


@pytest.mark.parametrize("name", LOSSES)
def test_the_order_of_sites_changes_nothing_else(name: str):
    """Another interleaving that keeps each sequence's tokens in order."""
    inputs = inputs_of(name)
    sequence, _ = sites_of(name)
    order = torch.argsort(sequence, stable=True)
    moved = {k: v if k in FACTS else v[order] for k, v in inputs.items()}
    torch.testing.assert_close(call(name, moved).loss, call(name, inputs).loss[order])


EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "ratios e^50": lambda logprobs: logprobs + 50,
    "ratios e^-50": lambda logprobs: logprobs - 50,
    "probability 0": lambda logprobs: torch.full_like(logprobs, -torch.inf),
    "probability 1": torch.zeros_like,
}


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("name", [name for name in LOSSES if "logprobs" in required_names(LOSSES[name].function)])
def test_extremes_stay_finite(name: str, extreme: str):
    """In fp32: log-ratios of ±50 at every token, tokens of probability 0 and 1."""
    inputs = inputs_of(name, dtype=torch.float32)
    others = [k for k in inputs if k.endswith("_logprobs")]
    changed = EXTREMES[extreme](inputs["logprobs"])
    inputs = inputs | ({"logprobs": changed} if "probability" in extreme or others else {})
    loss, statistics = call(name, inputs)
    assert loss.isfinite().all()
    assert all(values.isfinite().all() for values in statistics.values())
    for gradient in gradients(name, inputs, torch.ones(len(loss))).values():
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_comes_out_as_fp32(name: str, dtype: torch.dtype):
    """Rounded inputs in bf16 give what the same numbers give in fp32."""
    exact = inputs_of(name, dtype=torch.float32)
    rounded = {k: v.to(dtype) if k in TRAINED or k.endswith("logprobs") else v for k, v in exact.items()}
    loss = call(name, rounded).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, call(name, {k: v.to(exact[k].dtype) for k, v in rounded.items()}).loss)
