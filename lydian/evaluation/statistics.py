"""Scores with intervals. The unit is the problem: its samples are averaged first, never pooled as independent.

One score      `proportion` (Wilson or Student's t), `clustered` for related problems, `bootstrap` for pass@k and maj@k
Two scores     `paired_difference` with `mcnemar` (one sample a problem) or `sign_flip` (several)
Several        `holm` over the p-values of several benchmarks

Everything here is the standard library's arithmetic, so that an interval can be checked with a pocket calculator.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist, fmean, stdev

from lydian.errors import InputError

Z95 = NormalDist().inv_cdf(0.975)
"""1.96: the standard normal's 97.5 % point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its 95 % interval.

    value, low, high  in the unit of what is estimated (a share for accuracy)
    num               problems that it rests on
    method            how the interval was made: wilson, t, clustered t, agresti-min or bootstrap

    Example: `Estimate(value=0.6, low=0.57, high=0.63, num=1319, method="wilson")`
    """

    value: float
    low: float
    high: float
    num: int
    method: str

    def __post_init__(self) -> None:
        _require("Estimate", f"[{self.low}, {self.high}]", self.low <= self.high, "low ≤ high, both numbers")
        _require("Estimate.value", self.value, math.isfinite(self.value), "a finite number")
        _require("Estimate.num", self.num, self.num >= 1, "at least one problem")


def wilson(share: float, num: int) -> Estimate:
    """The Wilson score interval of a share, right also near 0 and 1 and for few problems.

    (p + z²/2N ± z √(p(1−p)/N + z²/4N²)) / (1 + z²/N)

    share  p, of problems solved; a mean of per-problem shares is taken too (the interval is then on the wide side)
    num    N, the number of problems

    Raises InputError if p is outside [0, 1] or N < 1.
    Source: Wilson (1927); arXiv:2503.01747 on why not the normal interval.

    >>> interval = wilson(0.0, 50)
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.0, 0.071)
    """
    _require("wilson: share", share, 0 <= share <= 1, "a share in [0, 1]")
    _require("wilson: num", num, num >= 1, "at least one problem")
    z2 = Z95**2 / num
    centre = share + z2 / 2
    half_width = math.sqrt(share * (1 - share) * z2 + z2**2 / 4)
    low, high = (centre - half_width) / (1 + z2), (centre + half_width) / (1 + z2)
    # At p = 0 or 1 the bound is p itself; rounding must not push it past.
    return Estimate(
        value=share, low=min(max(low, 0.0), share), high=max(min(high, 1.0), share), num=num, method="wilson"
    )


def mean(values: Seq[float]) -> Estimate:
    """The mean of one value a problem with Student's t interval, x̄ ± t(N−1) · s/√N.

    The values may be means over a problem's samples: s/√N then includes the sampling noise too (arXiv:2411.00640 §2).

    Raises InputError for fewer than two values.
    """
    _require("mean: values", len(values), len(values) >= 2, "at least two problems: one has no spread")
    centre = fmean(values)
    half_width = _t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(value=centre, low=centre - half_width, high=centre + half_width, num=len(values), method="t")


def proportion(shares: Seq[float], *, num_samples: int) -> Estimate:
    """The mean of per-problem shares in [0, 1]: Wilson for one sample a problem, else Student's t over problems.

    Where t has nothing to say (no spread, or an interval that leaves [0, 1]) Wilson takes over with N problems: a share
    varies at most as much as one coin with its mean, so that interval errs on the wide side.

    shares       one a problem: the mean over its samples
    num_samples  samples a problem

    Raises InputError if there are no shares or one is outside [0, 1].
    """
    _require("proportion: shares", "none", bool(shares), "at least one problem")
    _require("proportion: shares", f"{min(shares)}…{max(shares)}", 0 <= min(shares) <= max(shares) <= 1, "shares")
    if num_samples > 1 and min(shares) < max(shares):
        by_t = mean(shares)
        if by_t.low >= 0 and by_t.high <= 1:
            return by_t
    return wilson(fmean(shares), len(shares))


def clustered(values: Seq[float], clusters: Seq[Hashable], *, is_share: bool = True) -> Estimate:
    """The mean of one value a problem where problems of a cluster are related (one passage, one template).

    SE = √(G/(G−1) · Σ_g (Σ_{i∈g} (x_i − x̄))²) / N, and Student's t with G − 1 degrees of freedom

    values    [N] one a problem
    clusters  [N] which of the G clusters each belongs to
    is_share  the values are shares in [0, 1]: where t has nothing to say (no spread, one cluster, an interval that
              leaves [0, 1]) Wilson's interval with G clusters stands in

    Raises InputError for unequal lengths, or for one cluster of values that are no shares.
    Source: arXiv:2411.00640, equation 4, with the G/(G−1) of few clusters.

    >>> interval = clustered([1, 1, 0, 0, 1, 0], ["a", "a", "b", "b", "c", "c"])
    >>> round(interval.value, 2), interval.low >= 0
    (0.5, True)
    """
    _require("clustered", (len(values), len(clusters)), len(values) == len(clusters) > 0, "a cluster for each value")
    centre, num = fmean(values), len(values)
    sums: dict[Hashable, float] = defaultdict(float)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] += value - centre
    num_clusters = len(sums)
    _require("clustered: clusters", num_clusters, is_share or num_clusters > 1, "at least two clusters")
    if num_clusters > 1:
        error = math.sqrt(num_clusters / (num_clusters - 1) * math.fsum(x * x for x in sums.values())) / num
        half_width = _t_quantile(num_clusters - 1) * error
        low, high = centre - half_width, centre + half_width
        if not is_share or (error > 1e-12 and low >= 0 and high <= 1):
            return Estimate(value=centre, low=low, high=high, num=num, method="clustered t")
    return replace(wilson(centre, num_clusters), num=num, method="wilson by cluster")


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The chance that at least one of k samples is correct, unbiased from n ≥ k samples of a problem.

    1 − C(n−c, k) / C(n, k)

    num_samples  n, actually drawn and judged
    num_correct  c of them

    Raises InputError if not 1 ≤ k ≤ n (a guess would be biased) or not 0 ≤ c ≤ n.
    Source: arXiv:2107.03374, equation 1.

    >>> round(pass_at_k(16, 4, 4), 3)
    0.728
    """
    _require("pass_at_k: num_correct", num_correct, 0 <= num_correct <= num_samples, f"0…{num_samples}")
    require_k("pass_at_k", k, num_samples)
    return 1 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def maj_at_k(answers: Seq[tuple[str | None, bool]], k: int) -> float:
    """The chance that the commonest answer among k samples is correct, exact over all C(n, k) subsets of a problem's n.

    Answers None do not vote; t tied answers count 1/t each; no votes at all count 0. For each answer, with m of the n
    samples, and each number j of votes it may get, this sums over subsets in which no other answer has more than j:

    Σ_answer credit · Σ_j C(m, j) · Σ_t [number of ways to draw the other k−j with t rivals tied at j] / (t+1) / C(n, k)

    answers  (extracted answer or None, is it correct) for each sample; equal strings are one class, whose credit is
             the correct share of its samples (0 or 1, unless the verdict rests on more than the answer)

    Raises InputError if not 1 ≤ k ≤ n.

    >>> maj_at_k([("5", True), ("5", True), ("7", False)], 3), maj_at_k([("5", True), ("7", False)], 2)
    (1.0, 0.5)
    """
    require_k("maj_at_k", k, len(answers))
    classes: dict[str, list[bool]] = defaultdict(list)
    for answer, is_correct in answers:
        if answer is not None:
            classes[answer].append(is_correct)
    num_silent = len(answers) - sum(map(len, classes.values()))
    total = 0.0
    for answer, marks in classes.items():
        if any(marks):
            rivals = [len(others) for name, others in classes.items() if name != answer]
            total += fmean(marks) * _chance_to_win(len(marks), rivals, num_silent, k)
    return total / math.comb(len(answers), k)


def _chance_to_win(votes: int, rivals: Seq[int], num_silent: int, k: int) -> float:
    """Subsets of size k that an answer with `votes` samples wins, a t-way tie counted 1/t."""
    won = 0.0
    for j in range(1, min(votes, k) + 1):
        # ways[(drawn, tied)]: how many ways there are to draw that many samples from the rivals seen so far,
        # none of them above j votes and `tied` of them at j.
        ways = {(drawn, 0): math.comb(num_silent, drawn) for drawn in range(min(num_silent, k - j) + 1)}
        for rival in rivals:
            longer: dict[tuple[int, int], int] = defaultdict(int)
            for (drawn, tied), count in ways.items():
                for more in range(min(rival, j, k - j - drawn) + 1):
                    longer[drawn + more, tied + (more == j)] += count * math.comb(rival, more)
            ways = longer
        shares = sum(count / (tied + 1) for (drawn, tied), count in ways.items() if drawn == k - j)
        won += math.comb(votes, j) * shares
    return won


def bootstrap(
    values: Seq[float], *, clusters: Seq[Hashable] | None = None, num_draws: int = 2000, seed: int = 0
) -> Estimate:
    """The mean of one value in [0, 1] a problem, with the percentile interval over resampled problems.

    A problem keeps all its samples: its value (pass@k, maj@k) is a function of them. Without spread between problems
    the bootstrap has no width to give, and Wilson's interval stands in.

    clusters  [N] of related problems, which are then drawn whole; None: each problem is its own

    Raises InputError if there are no values.
    Source: Efron & Tibshirani (1993), chapter 13.
    """
    _require("bootstrap: values", "none", bool(values), "at least one problem")
    num = len(values)
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for cluster, value in zip(range(num) if clusters is None else clusters, values, strict=True):
        groups[cluster].append(value)
    if min(values) == max(values) or len(groups) == 1:
        return replace(wilson(fmean(values), len(groups)), num=num)
    rng = random.Random(seed)
    if clusters is None:
        means = sorted(fmean(rng.choices(values, k=num)) for _ in range(num_draws))
    else:
        parts = [(math.fsum(group), len(group)) for group in groups.values()]
        means = sorted(_pooled(rng.choices(parts, k=len(parts))) for _ in range(num_draws))
    tail = round(0.025 * num_draws)
    return Estimate(value=fmean(values), low=means[tail], high=means[num_draws - 1 - tail], num=num, method="bootstrap")


def _pooled(parts: Seq[tuple[float, int]]) -> float:
    return math.fsum(total for total, _ in parts) / sum(num for _, num in parts)


def paired_difference(before: Seq[float], after: Seq[float]) -> Estimate:
    """The mean of per-problem differences after − before, d̄ ± t(N−1) · s_d/√N: pairing cancels how hard each one is.

    If all differences are equal (often all zero), s_d = 0 says too much. The interval is then Agresti and Min's: as if
    one problem had been half gained, one half lost and one unchanged, which leaves about ±2/N at no change.

    before, after  [N] one score in [0, 1] a problem, in the same order

    Raises InputError if the lengths differ or are zero.
    Source: arXiv:2411.00640, equation 7; Agresti & Min (2005), Statistics in Medicine 24, 729–740.
    """
    _require("paired_difference", (len(before), len(after)), len(before) == len(after) > 0, "one pair a problem")
    differences = [b - a for a, b in zip(before, after, strict=True)]
    if min(differences) < max(differences):
        return mean(differences)
    num = len(differences)
    total, squares = math.fsum(differences), math.fsum(d * d for d in differences) + 1
    centre = total / (num + 2)
    half_width = Z95 * math.sqrt(squares - total**2 / (num + 2)) / (num + 2)
    low, high = max(centre - half_width, -1.0), min(centre + half_width, 1.0)
    return Estimate(value=total / num, low=low, high=high, num=num, method="agresti-min")


def mcnemar(num_gained: int, num_lost: int) -> float:
    """Exact two-sided p-value that gains and losses are equally likely: 2 · P(Bin(g + l, ½) ≤ min(g, l)), at most 1.

    num_gained, num_lost  problems that only the second or only the first system solved, one sample each

    Source: McNemar (1947), in its binomial form.

    >>> round(mcnemar(40, 20), 3)
    0.013
    """
    num = num_gained + num_lost
    tail, ways = 0, 1
    for i in range(min(num_gained, num_lost) + 1):
        tail += ways
        ways = ways * (num - i) // (i + 1)  # C(num, i + 1), a whole number
    return min(1.0, 2 * tail / 2**num)


def sign_flip(differences: Seq[float], *, num_draws: int = 10_000, seed: int = 0) -> float:
    """Two-sided p-value that the two systems are exchangeable on every problem, by flipping signs at random.

    (1 + #{|Σ ±d_i| ≥ |Σ d_i|}) / (1 + draws); never 0, since the data themselves are one of the flips.

    differences  [N] one a problem
    """
    moved = [d for d in differences if d != 0]
    observed = abs(math.fsum(moved)) - 1e-9  # sums in another order differ in the last bits; ties must count
    rng = random.Random(seed)
    extreme = 0
    for _ in range(num_draws):
        signs = rng.choices((-1.0, 1.0), k=len(moved))
        extreme += abs(sum(s * d for s, d in zip(signs, moved, strict=True))) >= observed
    return (1 + extreme) / (1 + num_draws)


def holm(p_values: Seq[float]) -> list[float]:
    """Adjusted p-values of several claims, in order: below α, a claim holds with all claims wrong at most at rate α.

    Sorted, p̃_(i) = max over j ≤ i of min(1, (m − j + 1) · p_(j))

    Source: Holm (1979).

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


@lru_cache
def _t_quantile(degrees: int) -> float:
    """The 97.5 % point of Student's t with a whole number of degrees of freedom, by Newton's method from below.

    The distribution function is concave for t > 0, so that steps from the normal quantile approach without overshoot.
    """
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(degrees * math.pi) / 2
    t = Z95
    for _ in range(100):
        density = math.exp(log_scale - (degrees + 1) / 2 * math.log1p(t * t / degrees))
        step = (0.95 - _t_central(t, degrees)) / 2 / density
        t += step
        if abs(step) < 1e-10:
            break
    return t


def _t_central(t: float, degrees: int) -> float:
    """P(|T| < t), the finite sums of Abramowitz & Stegun 26.7.3 (odd degrees) and 26.7.4 (even degrees)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine2 = math.cos(angle) ** 2
    is_odd = degrees % 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for i in range(2 + is_odd, degrees + 1, 2):
        total += term
        term *= cosine2 * (i - 1) / i
    if is_odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


def require_k(where: str, k: int, num_samples: int) -> None:
    """Raises InputError unless 1 ≤ k ≤ num_samples: with fewer than k samples a problem, no estimate is unbiased."""
    if not 1 <= k <= num_samples:
        raise InputError(
            where=f"{where}: k",
            given=f"k = {k} with {num_samples} samples of a problem",
            expected="1 ≤ k ≤ number of samples",
            fix="Draw more samples a problem, or ask for a smaller k.",
        )


def _require(where: str, given: object, holds: bool, expected: str) -> None:
    if not holds:
        raise InputError(where=where, given=given, expected=expected, fix="Correct the value where it is computed.")
