"""Estimates from several samples of a problem: pass^k (all correct) and best-of-k under a score (rm@k)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

from lydian.errors import InputError
from lydian.evaluation.statistics import require_k


def pass_hat_k(num_samples: int, num_correct: int, k: int) -> float:
    """The chance that all of k samples are correct, unbiased from n ≥ k samples of a problem.

    C(c, k) / C(n, k)

    num_samples  n, actually drawn and judged
    num_correct  c of them

    Raises InputError if not 1 ≤ k ≤ n.
    Source: arXiv:2406.12045, section 3.

    >>> round(pass_hat_k(16, 4, 2), 3)
    0.05
    """
    require_k("pass_hat_k", k, num_samples)
    return math.comb(num_correct, k) / math.comb(num_samples, k)


def best_of_k(samples: Seq[tuple[float, bool]], k: int) -> float:
    """The chance that the best-scored of k samples is correct, exact over all C(n, k) subsets of a problem's n.

    Σ_v [C(n_≤v, k) − C(n_<v, k)] / C(n, k) · (share correct among samples that score v)

    samples  (score, is it correct) for each sample; a tie goes to each of the tied with the same chance
    n_≤v     samples that score at most v

    Raises InputError if not 1 ≤ k ≤ n, or for a score that is not finite.

    >>> best_of_k([(0.9, True), (0.5, False), (0.1, False)], 2)
    0.6666666666666666
    """
    require_k("best_of_k", k, len(samples))
    if not all(math.isfinite(score) for score, _ in samples):
        raise InputError(
            where="best_of_k: samples", given="a score that is not finite", expected="numbers", fix="Score them again."
        )
    sizes = Counter(score for score, _ in samples)
    correct = Counter(score for score, is_correct in samples if is_correct)
    below, total = 0, 0.0
    for score in sorted(sizes):
        ways = math.comb(below + sizes[score], k) - math.comb(below, k)
        total += ways * correct[score] / sizes[score]
        below += sizes[score]
    return total / math.comb(len(samples), k)


def require_scores(keys: Iterable[tuple[str, int]], scores: Mapping[tuple[str, int], float]) -> None:
    """Raises InputError, naming a few, if a (problem id, sample) has no score."""
    missing = [key for key in keys if key not in scores]
    if missing:
        raise InputError(
            where="best_of_k: scores",
            given=f"no score for {len(missing)} samples, such as {missing[:3]}",
            expected="a score for every judged sample",
            fix="Score all samples; one that has no score is not the worst.",
        )
