"""pass^k and best-of-k against counts by hand and against all subsets."""

from __future__ import annotations

import itertools
import random
from statistics import fmean

import pytest

from lydian.errors import InputError
from lydian.evaluation.best_of import best_of_k, pass_hat_k


def test_pass_hat_k_by_hand() -> None:
    """4 of 16 right, k = 2: (4·3/2) / (16·15/2) = 6/120; fewer than k right: 0; all right: 1."""
    assert pass_hat_k(16, 4, 2) == pytest.approx(6 / 120)
    assert pass_hat_k(16, 1, 2) == 0 and pass_hat_k(5, 5, 5) == 1


@pytest.mark.parametrize("k", [0, 5])
def test_k_beyond_the_samples_is_refused(k: int) -> None:
    with pytest.raises(InputError):
        pass_hat_k(4, 2, k)
    with pytest.raises(InputError):
        best_of_k([(0.0, True)] * 4, k)


def test_best_of_k_equals_all_subsets_with_ties_in_expectation() -> None:
    rng = random.Random(0)
    for _ in range(30):
        samples = [(float(rng.randrange(3)), rng.random() < 0.5) for _ in range(6)]
        for k in range(1, 7):
            chances = []
            for drawn in itertools.combinations(samples, k):
                best = max(score for score, _ in drawn)
                chances.append(fmean(mark for score, mark in drawn if score == best))
            assert best_of_k(samples, k) == pytest.approx(fmean(chances))


def test_a_score_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="finite"):
        best_of_k([(float("nan"), True), (0.0, False)], 1)
