"""`Policy`: the conventions of mathematical equality on which people differ, each with a name and a default."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal, get_args

from lydian.errors import RecipeError

Percent = Literal["fraction", "asked", "either"]
Units = Literal["optional", "ignored", "required"]
Base = Literal["written", "value"]
Labels = Literal["optional", "required"]
Relations = Literal["as_sets", "distinct"]
Lists = Literal["unordered", "ordered"]
Commas = Literal["either", "thousands", "decimal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What counts as equal where conventions differ.

    percent    50% is 1/2; "asked": also 50 if the question asks for a percentage; "either": always also 50
    units      "optional": a unit may be missing on one side, 1 km is 1000 m, 5 cm is not 5 m; "ignored": units do not
               count; "required": both sides or neither have one
    base       "written": 101_2 is 101 with no base or base 2 beside it; "value": 101_2 is 5
    labels     "optional": x = 5 is 5; "required": it is not
    relations  "as_sets": x > 2 is (2, ∞); "distinct": a relation equals no set
    lists      "unordered": 1, 2 is 2, 1; "ordered": it is not (sets never have an order, tuples always do)
    commas     "either": 1,234 is 1234 and 1,5 is 1.5; "thousands": a comma is never a decimal comma; "decimal": a comma
               between digits always is, and points between groups of three separate thousands
    digits     a decimal equals an exact value if they agree to this many significant digits

    Raises RecipeError for a value that is not listed.

    >>> Policy(percent="either").percent
    'either'
    """

    percent: Percent = "asked"
    units: Units = "optional"
    base: Base = "written"
    labels: Labels = "optional"
    relations: Relations = "as_sets"
    lists: Lists = "unordered"
    commas: Commas = "either"
    digits: int = 12

    def __post_init__(self) -> None:
        allowed = {
            "percent": Percent,
            "units": Units,
            "base": Base,
            "labels": Labels,
            "relations": Relations,
            "lists": Lists,
            "commas": Commas,
        }
        for name, kind in allowed.items():
            if getattr(self, name) not in get_args(kind):
                raise _bad_setting(name, getattr(self, name), f"one of {', '.join(get_args(kind))}")
        if isinstance(self.digits, bool) or not isinstance(self.digits, int) or not 3 <= self.digits <= 15:
            raise _bad_setting("digits", self.digits, "a whole number from 3 to 15")

    @property
    def tolerance(self) -> float:
        """Two numbers that agree to `digits` significant digits differ by less than this, relative to the larger."""
        return 5.0 * 10.0**-self.digits

    def settings(self) -> dict[str, str | int]:
        """All settings by name, for fingerprints and for other processes."""
        return asdict(self)


def _bad_setting(name: str, given: object, expected: str) -> RecipeError:
    return RecipeError(where=f"math.{name}", given=repr(given), expected=expected, fix="Correct the setting.")
