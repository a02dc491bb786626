"""How many problems a comparison needs, and what it can see with those it has. Both models answer the same problems."""

from __future__ import annotations

import math
from statistics import NormalDist

from lydian.errors import InputError


def problems_needed(gain: float, *, discordance: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """Problems needed to see a gain, paired, one sample a problem.

    N = ⌈(z_{1−α/2} + z_power)² · (q − Δ²) / Δ²⌉

    gain         Δ, difference of the two accuracies, a share in (0, 1]
    discordance  q, share of problems that exactly one of the two solves; at least Δ
    power        chance to see the gain where there is one
    alpha        chance to see one, in either direction, where there is none

    Raises InputError for a gain above the discordance (it would be impossible), or a number out of range.
    Source: Connor (1987), Biometrics 43, 207–211; arXiv:2411.00640, section 5.

    >>> problems_needed(0.03, discordance=0.2), problems_needed(0.05, discordance=0.2)
    (1737, 621)
    """
    _check(gain, discordance, power, alpha)
    return max(1, math.ceil(_z2(power, alpha) * (discordance - gain**2) / gain**2))


def visible_gain(num_problems: int, *, discordance: float, power: float = 0.8, alpha: float = 0.05) -> float | None:
    """The smallest gain that a comparison on this many problems can see; None if even Δ = q is too small.

    Δ = z · √(q / (N + z²)), z = z_{1−α/2} + z_power: the formula of `problems_needed` solved for Δ

    num_problems  N
    discordance, power, alpha  as in `problems_needed`

    >>> round(visible_gain(1736, discordance=0.2), 3)
    0.03
    """
    _check(discordance, discordance, power, alpha)
    if num_problems < 1:
        raise _wrong("num_problems", num_problems, "an integer ≥ 1")
    z2 = _z2(power, alpha)
    gain = math.sqrt(z2 * discordance / (num_problems + z2))
    return gain if gain <= discordance else None


def _z2(power: float, alpha: float) -> float:
    normal = NormalDist()
    return (normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)) ** 2


def _check(gain: float, discordance: float, power: float, alpha: float) -> None:
    if not 0 < discordance <= 1:
        raise _wrong("discordance", discordance, "a share in (0, 1]")
    if not 0 < gain <= discordance:
        raise _wrong("gain", gain, f"a share in (0, {discordance}]: no gain exceeds the share of discordant problems")
    for name, value in (("power", power), ("alpha", alpha)):
        if not 0 < value < 1:
            raise _wrong(name, value, "a share in (0, 1)")


def _wrong(name: str, given: object, expected: str) -> InputError:
    return InputError(where=f"power: {name}", given=given, expected=expected, fix="Correct the number.")
