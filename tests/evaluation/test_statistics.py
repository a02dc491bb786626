"""Every expected number is derived in the docstring, from tables, or by enumerating all cases."""

from __future__ import annotations

import itertools
import math
import random
from statistics import fmean

import pytest

from lydian.errors import InputError
from lydian.evaluation import statistics as st


def test_wilson_by_hand():
    """8 of 10: z² = 3.8415, z²/N = 0.38415. Centre (0.8 + 0.19207)/1.38415 = 0.71674; half width
    √(0.16·0.38415 + 0.19207²)/1.38415 = √0.098356/1.38415 = 0.22658."""
    interval = st.wilson(0.8, 10)
    assert interval.low == pytest.approx(0.71674 - 0.22658, abs=1e-4)
    assert interval.high == pytest.approx(0.71674 + 0.22658, abs=1e-4)
    assert (interval.value, interval.num, interval.method) == (0.8, 10, "wilson")


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_wilson_at_the_ends(share):
    """0 of 50: the upper end is (z²/N)/(1 + z²/N) = 0.07683/1.07683 = 0.0713; all of 50 mirrors it."""
    interval = st.wilson(share, 50)
    low, high = (interval.low, interval.high) if share == 0 else (1 - interval.high, 1 - interval.low)
    assert low == 0
    assert high == pytest.approx(0.0713, abs=1e-4)


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (29, 2.045), (120, 1.980)]
)
def test_mean_uses_the_t_table(degrees, quantile):
    """The two-sided 5 % column of any printed t table; half the width is t · s/√N."""
    values = [0.0, 1.0] * (degrees // 2 + 1)
    values = values[: degrees + 1]
    centre = fmean(values)
    spread = sum((v - centre) ** 2 for v in values) / degrees / (degrees + 1)
    interval = st.mean(values)
    assert (interval.high - centre) / spread**0.5 == pytest.approx(quantile, abs=6e-4)
    assert centre - interval.low == pytest.approx(interval.high - centre)


def test_t_is_close_to_the_normal_for_many_problems():
    """The expansion t ≈ z + (z³ + z)/(4ν) gives 1.959964 + 9.489/4/10 000 = 1.960201 for ν = 10 000."""
    assert st._t_quantile(10_000) == pytest.approx(1.960201, abs=1e-6)


def test_proportion_chooses_the_interval():
    """One sample a problem: Wilson. Several: t over problems. No spread, or t outside [0, 1]: Wilson again.

    Four problems, eight times each, at 0, ½, ½, 1: mean 0.5, Σ(s − 0.5)² = 8·0.5 = 4, s² = 4/31, SE = √(4/31/32) =
    0.0635, t(31) = 2.0395: ± 0.1295. Pooling the samples as independent would say less."""
    shares = [0.0, 0.5, 0.5, 1.0] * 8
    several = st.proportion(shares, num_samples=2)
    assert (several.method, several.num) == ("t", 32)
    assert several.high == pytest.approx(0.5 + 0.1295, abs=1e-4)
    assert st.proportion([0.0, 1.0] * 16, num_samples=1) == st.wilson(0.5, 32)
    assert st.proportion([0.5] * 32, num_samples=2) == st.wilson(0.5, 32)
    assert st.proportion([0.0] * 31 + [0.5], num_samples=2) == st.wilson(0.5 / 32, 32)  # t would go below 0


@pytest.mark.parametrize("shares", [[], [1.5], [-0.1, 0.5]])
def test_proportion_refuses_what_is_no_share(shares):
    with pytest.raises(InputError):
        st.proportion(shares, num_samples=2)


def test_wilson_covers():
    """Where the true share is 0.05 and N = 40, of 2000 seeded draws at least 93 % of the intervals hold it (the exact
    coverage, by summing the binomial, is 0.952: counts 0 … 4 do)."""
    rng = random.Random(5)
    counts = [sum(rng.random() < 0.05 for _ in range(40)) for _ in range(2000)]
    hits = [st.wilson(c / 40, 40).low <= 0.05 <= st.wilson(c / 40, 40).high for c in counts]
    assert 0.93 < fmean(hits) < 0.97


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 1, 2, 0.5),  # 1 − C(3,2)/C(4,2) = 1 − 3/6
        (16, 4, 4, 1 - 495 / 1820),  # C(12,4) = 495, C(16,4) = 1820; the plug-in 1 − 0.75⁴ = 0.684 is too low
        (5, 0, 3, 0.0),
        (5, 3, 3, 1.0),  # two wrong ones cannot fill three places
        (7, 2, 1, 2 / 7),
    ],
)
def test_pass_at_k_by_hand(n, c, k, expected):
    assert st.pass_at_k(n, c, k) == pytest.approx(expected)


def test_at_k_refuses_fewer_samples_than_k():
    for attempt in (
        lambda: st.pass_at_k(3, 1, 4),
        lambda: st.maj_at_k([("a", True)], 2),
        lambda: st.pass_at_k(3, 1, 0),
    ):
        with pytest.raises(InputError, match="1 ≤ k"):
            attempt()


@pytest.mark.parametrize(
    ("answers", "k", "expected"),
    [
        ([("5", True), ("5", True), ("7", False)], 2, 2 / 3),  # {5,5} wins, {5,7} twice is a toss-up: (1 + ½ + ½)/3
        ([("5", True), (None, False), ("7", False)], 2, 0.5),  # {5,–} wins, {5,7} ½, {–,7} loses
        ([("5", True), ("6", False), ("7", False)], 3, 1 / 3),  # a tie of three
        ([("5", True), ("7", False), ("7", False)], 3, 0.0),
        ([(None, False), (None, False)], 2, 0.0),  # nobody votes
        ([("5", True), ("5", False), ("7", False)], 3, 0.5),  # the winning class is credited by its correct share
    ],
)
def test_maj_at_k_by_hand(answers, k, expected):
    assert st.maj_at_k(answers, k) == pytest.approx(expected)


def test_maj_at_k_equals_the_enumeration_of_all_subsets():
    rng = random.Random(1)
    for _ in range(60):
        n = rng.randint(1, 8)
        names = rng.choices([None, "a", "b", "c", "d"], k=n)
        answers = [(name, name in ("a", "c")) for name in names]
        k = rng.randint(1, n)
        credits = []
        for subset in itertools.combinations(names, k):
            votes = {name: subset.count(name) for name in subset if name is not None}
            winners = [name for name, count in votes.items() if count == max(votes.values())]
            credits.append(fmean(name in ("a", "c") for name in winners) if winners else 0.0)
        assert st.maj_at_k(answers, k) == pytest.approx(fmean(credits))


def test_bootstrap_resamples_problems():
    """100 problems, half at 1: the bootstrap means are Bin(100, ½)/100, with 2.5 % points 0.40 and 0.60 (its exact
    quantiles); another seed moves an end by at most 0.02, the same seed not at all."""
    values = [0.0, 1.0] * 50
    interval = st.bootstrap(values, seed=3)
    assert (interval.value, interval.num, interval.method) == (0.5, 100, "bootstrap")
    assert interval.low == pytest.approx(0.40, abs=0.02)
    assert interval.high == pytest.approx(0.60, abs=0.02)
    assert interval == st.bootstrap(values, seed=3)
    assert st.bootstrap([1.0] * 20) == st.wilson(1.0, 20)


def test_paired_difference_by_hand():
    """500 problems, 40 gained, 20 lost: d̄ = 0.04, s² = (60 − 500·0.04²)/499 = 0.118637, SE = √(s²/500) = 0.015404,
    t(499) = 1.9647: ± 0.030264. Unpaired, SE = 0.0316 would see nothing."""
    before = [0.0] * 40 + [1.0] * 20 + [1.0] * 220 + [0.0] * 220
    after = [1.0] * 40 + [0.0] * 20 + [1.0] * 220 + [0.0] * 220
    difference = st.paired_difference(before, after)
    assert difference.value == pytest.approx(0.04)
    assert difference.low == pytest.approx(0.04 - 0.030264, abs=1e-5)
    assert difference.high == pytest.approx(0.04 + 0.030264, abs=1e-5)


def test_paired_difference_without_spread_keeps_a_width():
    """No change on 98 problems: ± z·√(½ + ½)/(98 + 2) = ± 0.0196. All 8 gained: centre 8/10, Σd² + 1 − 8²/10 = 2.6,
    half width 1.95996·√2.6/10 = 0.31603: [0.48397, 1]."""
    unchanged = st.paired_difference([1.0] * 98, [1.0] * 98)
    assert (unchanged.value, unchanged.method) == (0.0, "agresti-min")
    assert (unchanged.low, unchanged.high) == pytest.approx((-0.0196, 0.0196), abs=1e-5)
    gained = st.paired_difference([0.0] * 8, [1.0] * 8)
    assert gained.value == 1.0
    assert (gained.low, gained.high) == pytest.approx((0.48397, 1.0), abs=1e-5)


@pytest.mark.parametrize("pair", [([], []), ([1.0], [1.0, 0.0])])
def test_paired_difference_refuses_unpaired_scores(pair):
    with pytest.raises(InputError, match="pair"):
        st.paired_difference(*pair)


@pytest.mark.parametrize(
    ("gained", "lost", "expected"),
    [
        (5, 0, 2 / 32),
        (0, 5, 2 / 32),
        (3, 1, 2 * (1 + 4) / 16),
        (2, 2, 1.0),  # 2·(1 + 4 + 6)/16 is above 1
        (0, 0, 1.0),
    ],
)
def test_mcnemar_by_hand(gained, lost, expected):
    assert st.mcnemar(gained, lost) == pytest.approx(expected)


def test_mcnemar_stands_thousands_of_changes():
    """z = 400/√4000 = 6.32, two-sided normal tail 2.5e-10; the counts do not fit into a float."""
    assert st.mcnemar(2200, 1800) == pytest.approx(2.7e-10, rel=0.1)


def test_sign_flip_by_hand():
    """Five differences of +0.3: only all-plus and all-minus of the 32 sign patterns are as extreme, p = 1/16; with
    10 000 draws its standard error is 0.0024. Unchanged problems do not matter, nor does the direction."""
    p = st.sign_flip([0.3] * 5 + [0.0] * 20)
    assert p == pytest.approx(1 / 16, abs=0.01)
    assert p == st.sign_flip([-0.3] * 5)
    assert st.sign_flip([0.0] * 7) == 1.0
    assert st.sign_flip([0.5] * 40, num_draws=999) == 1 / 1000  # never zero


def test_estimate_refuses_a_reversed_interval():
    with pytest.raises(InputError, match="low ≤ high"):
        st.Estimate(value=0.5, low=0.6, high=0.4, num=3, method="t")


def test_clustered_by_hand() -> None:
    """Clusters a: 1, 1; b: 0, 0; c: 1, 0; mean ½. Sums of deviations 1, −1, 0: SE = √(3/2 · 2)/6 = 0.289; t(2) = 4.303
    gives ±1.24, outside [0, 1], so that Wilson's with 3 clusters stands in: at p = ½, ½ ± ½·z/√(3 + z²)."""
    values, clusters = [1, 1, 0, 0, 1, 0], ["a", "a", "b", "b", "c", "c"]
    by_t = st.clustered(values, clusters, is_share=False)
    assert by_t.method == "clustered t" and by_t.high - by_t.value == pytest.approx(
        4.30265 * math.sqrt(3) / 6, rel=1e-4
    )
    by_wilson = st.clustered(values, clusters)
    z = st.Z95
    assert by_wilson.num == 6 and by_wilson.high - 0.5 == pytest.approx(0.5 * z / math.sqrt(3 + z * z))


def test_clusters_of_one_are_plain_problems() -> None:
    values = [0.2, 0.4, 0.6, 0.8, 0.5, 0.5]
    assert st.clustered(values, range(6)).low == pytest.approx(st.mean(values).low)


def test_related_problems_widen_the_bootstrap() -> None:
    values, clusters = [1.0, 1.0, 0.0, 0.0] * 5, [i // 2 for i in range(20)]
    plain, by_cluster = st.bootstrap(values), st.bootstrap(values, clusters=clusters)
    assert by_cluster.high - by_cluster.low > 1.2 * (plain.high - plain.low) and by_cluster.num == 20


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.03, 0.9 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.9; in the order given."""
    assert st.holm([0.03, 0.9, 0.01, 0.02]) == pytest.approx([0.06, 0.9, 0.04, 0.06])
    assert st.holm([]) == [] and st.holm([0.7, 0.8]) == [1.0, 1.0]
