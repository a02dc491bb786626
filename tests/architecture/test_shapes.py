"""Shapes are executable: under test, a tensor of the wrong shape is refused where it is passed."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from lydian.objectives.divergence import k1


def test_a_wrong_shape_is_refused():
    """k1 asks for two vectors of one length n; 3 and 1 would broadcast silently."""
    with pytest.raises(TypeCheckError, match="other_logprobs"):
        k1(torch.zeros(3), torch.zeros(1))
