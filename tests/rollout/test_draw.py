"""Drawing tokens: inverse of the cumulative distribution, on grids of uniforms where the shares are exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lydian.data.trajectory import Sampling
from lydian.rollout.draw import BLOCK, draw, uniforms

ALMOST_ONE = 1 - 2**-53
"""The largest number that `uniforms` can give."""


def draws(logits: torch.Tensor, uniform, **settings) -> tuple[torch.Tensor, torch.Tensor]:
    """One draw of the same distribution for each uniform number."""
    uniform = torch.as_tensor(uniform, dtype=torch.float64)
    return draw(logits.expand(len(uniform), -1).clone(), Sampling(**settings), uniform)


def shares(logits: torch.Tensor, num: int = 20_000, **settings) -> torch.Tensor:
    """The share of a regular grid of `num` uniforms that falls to each token: its probability to 1 / num."""
    tokens, _ = draws(logits, (torch.arange(num) + 0.5) / num, **settings)
    return tokens.bincount(minlength=logits.numel()) / num


def random_logits(size: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [5, BLOCK, BLOCK + 1, 700])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_share_of_uniforms_is_the_probability(size: int, temperature: float):
    """Also where the vocabulary fills one block, begins a second, and ends within a third."""
    logits = random_logits(size)
    expected = (logits.double() / temperature).softmax(-1)
    found = shares(logits, num=20_000 if size < 700 else 10_000, temperature=temperature)
    torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=0)


def test_logprobs_are_those_of_the_distribution_drawn_from():
    logits = random_logits(700)
    tokens, logprobs = draws(logits, uniforms(0, "p", 0, 200), temperature=0.7)
    expected = (logits.double() / 0.7).log_softmax(-1)[tokens].float()
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)


def test_draws_of_random_uniforms_pass_a_chi_square_test():
    """χ² of 20,000 draws over 6 tokens, 5 degrees of freedom: below 20.5 with probability 0.999."""
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -0.5])
    num = 20_000
    tokens, _ = draws(logits, uniforms(1, "p", 0, num))
    expected = logits.double().softmax(-1) * num
    chi_square = ((tokens.bincount(minlength=6) - expected) ** 2 / expected).sum().item()
    assert chi_square < 20.5


@pytest.mark.parametrize("size", [6, 700])
@pytest.mark.parametrize("possible", ["first", "last", "middle", "two"])
def test_never_a_token_of_probability_zero(size: int, possible: str):
    """At both ends of [0, 1), at the bound between tokens, and past it: u = 1 comes of rounding only."""
    allowed = {"first": [0], "last": [size - 1], "middle": [size // 2], "two": [1, size - 2]}[possible]
    logits = torch.full((size,), -torch.inf)
    logits[allowed] = random_logits(len(allowed))
    tokens, logprobs = draws(logits, [0.0, 5e-324, 1e-9, 0.25, 0.5, 0.75, 1 - 1e-9, ALMOST_ONE, 1.0])
    assert set(tokens.tolist()) <= set(allowed)
    assert logprobs.isfinite().all()
    assert tokens[0] == allowed[0] and tokens[-1] == allowed[-1]


def test_ends_of_the_unit_interval_are_the_first_and_last_possible_tokens():
    logits = random_logits(700)
    logits[[0, 1, 699]] = -torch.inf
    tokens, _ = draws(logits, [0.0, ALMOST_ONE])
    assert tokens.tolist() == [2, 698]


def test_bounds_between_tokens_by_hand():
    """Probabilities ¼ ½ ¼: bounds at 0.25 and 0.75."""
    logits = torch.tensor([1.0, 2.0, 1.0]).log()
    tokens, _ = draws(logits, [0.0, 0.24, 0.26, 0.5, 0.74, 0.76, 0.99])
    assert tokens.tolist() == [0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 2}, [0.5, 0.0, 0.3, 0.0]),
        ({"top_p": 0.55}, [0.5, 0.0, 0.3, 0.0]),
        ({"top_p": 0.45}, [0.5, 0.0, 0.0, 0.0]),
        ({"top_p": 0.85}, [0.5, 0.0, 0.3, 0.15]),
        ({"min_p": 0.25}, [0.5, 0.0, 0.3, 0.15]),
        ({"min_p": 0.5}, [0.5, 0.0, 0.3, 0.0]),
        ({"top_k": 3, "top_p": 0.83}, [0.5, 0.0, 0.3, 0.0]),
        ({"top_k": 3, "min_p": 0.5}, [0.5, 0.0, 0.3, 0.0]),
        ({"top_k": 9}, [0.5, 0.05, 0.3, 0.15]),
    ],
)
def test_truncation_by_hand(settings: dict, kept: list[float]):
    """Probabilities .50 .05 .30 .15. Top-p keeps the fewest whose mass suffices: .55 needs .50 + .30, .45 the first
    alone, .85 three (.80 is not enough). Min-p 0.25 asks for .125, 0.5 for .25. Top-k 3 leaves .95, of which .50 and
    .30 are .842 ≥ .83: top-p comes second; of the whole it would need three. What is kept is normalised again."""
    probs = torch.tensor([0.5, 0.05, 0.3, 0.15])
    expected = torch.tensor(kept) / sum(kept)
    torch.testing.assert_close(shares(probs.log(), num=10_000, **settings), expected, atol=1e-3, rtol=0)
    tokens, logprobs = draws(probs.log(), [0.3], **settings)
    assert logprobs.item() == pytest.approx(expected[tokens.item()].log().item(), abs=1e-6)


def test_truncation_comes_after_the_temperature():
    """At temperature 2 probabilities .64 .32 .04 go as their roots, .8 : .566 : .2 = .511 .361 .128: top-p 0.6 then
    needs the first two; at temperature 1 the first alone is enough."""
    logits = torch.tensor([0.64, 0.32, 0.04]).log()
    assert shares(logits, temperature=2.0, top_p=0.6).count_nonzero() == 2
    assert shares(logits, temperature=1.0, top_p=0.6).count_nonzero() == 1


def test_greedy_takes_the_likeliest_whatever_the_uniform():
    tokens, logprobs = draws(random_logits(700), [0.0, 0.5, ALMOST_ONE], temperature=0.0)
    assert tokens.tolist() == [random_logits(700).argmax().item()] * 3
    assert logprobs.tolist() == [0.0] * 3


def test_rows_are_drawn_independently():
    """Each row with its own logits and uniform: the same as one at a time."""
    logits = torch.stack([random_logits(700, seed) for seed in range(8)])
    numbers = torch.from_numpy(uniforms(0, "p", 1, 8))
    together, _ = draw(logits.clone(), Sampling(top_p=0.9), numbers)
    alone = [
        draw(row[None].clone(), Sampling(top_p=0.9), u[None])[0].item() for row, u in zip(logits, numbers, strict=True)
    ]
    assert together.tolist() == alone


def test_uniforms_are_a_function_of_seed_problem_and_sample():
    """In [0, 1); the t-th does not depend on how many are asked for; `1/a`, sample 0, is not `a`, sample 1."""
    base = uniforms(0, "a", 1, 5)
    assert np.array_equal(base, uniforms(0, "a", 1, 9)[:5])
    assert ((base >= 0) & (base < 1)).all()
    for other in ((1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "1/a", 0), (0, "a", 11)):
        assert not np.array_equal(base, uniforms(*other, 5))
