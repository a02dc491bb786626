"""Every token is predicted once, and a model that knows nothing gives the number that must come out."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lydian.errors import InputError
from lydian.evaluation.perplexity import _windows, perplexity


class Uniform:
    """Each of 8 tokens is as likely as any other: log π = −ln 8 whatever the text."""

    device = torch.device("cpu")

    def logprobs(self, forest):
        num = len(forest.sites.target)
        return torch.full((num,), -math.log(8)), torch.zeros(num)


@pytest.mark.parametrize("window", [2, 3, 4, 7, 100])
def test_windows_predict_each_token_once(window) -> None:
    tokens = tuple(range(10))
    trained = [t for w in _windows(tokens, window) for t, used in zip(w.tokens, w.trained, strict=True) if used]
    assert trained == list(range(1, 10))
    for part in _windows(tokens, window)[1:]:
        assert part.trained.index(True) >= window // 2  # context


def test_a_uniform_model() -> None:
    """Perplexity 8 a token; 20 tokens over 40 bytes: 8^(1/2) a byte, 1.5 bits a byte."""
    found = perplexity(Uniform(), list(range(20)), start=0, num_bytes=40, window=6)
    assert found.num_tokens == 20 and found.per_token == pytest.approx(8)
    assert found.per_byte == pytest.approx(math.sqrt(8)) and found.bits_per_byte == pytest.approx(1.5)


@pytest.mark.parametrize("bad", [{"tokens": []}, {"window": 1}, {"num_bytes": 0}])
def test_no_text_is_refused(bad) -> None:
    given = SimpleNamespace(**{"tokens": [1], "window": 4, "num_bytes": 1} | bad)
    with pytest.raises(InputError):
        perplexity(Uniform(), given.tokens, start=0, num_bytes=given.num_bytes, window=given.window)
