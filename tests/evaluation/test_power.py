"""The planning formula against the sizes in its sources."""

from __future__ import annotations

import pytest

from lydian.errors import InputError
from lydian.evaluation.power import problems_needed, visible_gain


@pytest.mark.parametrize(("discordance", "gain", "num"), [(0.2, 0.03, 1736), (0.2, 0.05, 620), (0.1, 0.03, 864)])
def test_problems_needed(discordance: float, gain: float, num: int) -> None:
    """(1.960 + 0.842)² = 7.849 times (q − Δ²)/Δ²: 221.2, 79, 110.1."""
    assert problems_needed(gain, discordance=discordance) == pytest.approx(num, abs=1)


def test_visible_gain_is_the_inverse() -> None:
    num = problems_needed(0.04, discordance=0.15, power=0.9, alpha=0.01)
    gain = visible_gain(num, discordance=0.15, power=0.9, alpha=0.01)
    assert gain == pytest.approx(0.04, abs=1e-4)


def test_too_few_problems_show_nothing() -> None:
    """q = 0.2 and z² = 7.85: √(7.85·0.2/(5 + 7.85)) = 0.35 > 0.2, more than could ever be gained."""
    assert visible_gain(5, discordance=0.2) is None


@pytest.mark.parametrize("bad", [{"gain": 0.3}, {"gain": 0}, {"power": 1.0}, {"alpha": 0}, {"discordance": 1.2}])
def test_impossible_questions_are_refused(bad: dict[str, float]) -> None:
    arguments = {"gain": 0.05, "discordance": 0.2} | bad
    with pytest.raises(InputError):
        problems_needed(arguments.pop("gain"), **arguments)
