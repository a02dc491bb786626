"""Signatures become settings: what binds, what is refused, and where an error says it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from lydian.data.trajectory import Sampling
from lydian.errors import RecipeError
from lydian.recipes.bind import REQUIRED, ErrorList, bind, bind_dataclass, nearest, settings_model, settings_of

if TYPE_CHECKING:
    from torch import Tensor  # named by a positional parameter only: binding must not need it


class Side(StrEnum):
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class InLoss:
    """coef  weight of the term"""

    coef: float
    estimator: Literal["k1", "k3"] = "k3"


@dataclass(frozen=True, slots=True, kw_only=True)
class InReward:
    """discount  of later tokens"""

    discount: float


def objective(
    logprobs: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    rounds: int = 1,
    is_masked: bool = False,
    mode: Literal["token", "sequence"] = "token",
    side: Side = Side.LOW,
    levels: tuple[int, ...] = (),
    share: tuple[float, float] = (0.0, 1.0),
    limit: int | None = None,
    where: str | int = "all",
    file: Path = Path("x"),
    names: dict[str, str] | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    kl: InLoss | InReward | None = None,
) -> None:
    """A loss.

    logprobs            [n] of each token
    clip_low, clip_high  bounds of the ratio
    rounds              how often,
                        all counted
    unrelated           not a parameter
    """


def refused(table: object, function: Any = objective) -> list[RecipeError]:
    errors = ErrorList("recipe test")
    assert bind(function, table, where="stages[2].objective", errors=errors) is None
    assert errors.errors
    return errors.errors


def bound(table: dict[str, Any], function: Any = objective) -> dict[str, Any]:
    errors = ErrorList("recipe test")
    settings = bind(function, table, where="here", errors=errors)
    assert settings is not None, errors.lines()
    return settings


def test_settings_are_the_keyword_only_parameters_with_their_docs() -> None:
    settings = {s.name: s for s in settings_of(objective)}
    assert "logprobs" not in settings and "advantage" not in settings
    assert settings["clip_high"].default == 0.2 and settings["clip_high"].type is float
    assert settings["clip_low"].doc == settings["clip_high"].doc == "bounds of the ratio"
    assert settings["rounds"].doc == "how often, all counted"
    assert settings["limit"].doc == ""


def test_settings_of_a_dataclass() -> None:
    settings = {s.name: s for s in settings_of(Sampling)}
    assert settings["temperature"].doc == "0 is greedy; otherwise logits are divided by it"
    assert settings["max_tokens"].default == 256
    assert [s.default for s in settings_of(InReward)] == [REQUIRED]


def test_settings_of_a_class_with_a_constructor() -> None:
    class Judge:
        """tolerance  how far off"""

        def __init__(self, *, tolerance: float = 0.5) -> None:
            self.tolerance = tolerance

    assert [(s.name, s.type, s.default, s.doc) for s in settings_of(Judge)] == [
        ("tolerance", float, 0.5, "how far off")
    ]


def test_a_subclass_says_what_it_adds_and_inherits_what_its_parent_says() -> None:
    class Parent:
        """A verifier.

        tolerance  how far off
        """

        def __init__(self, *, tolerance: float = 0.5) -> None: ...

    class Child(Parent):
        """marker  where the answer stands"""

        def __init__(self, *, marker: str = "", tolerance: float = 0.5) -> None: ...

    assert [s.doc for s in settings_of(Child)] == ["where the answer stands", "how far off"]


def test_defaults_are_explicit() -> None:
    assert bound({}) == {s.name: s.default for s in settings_of(objective)}


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("clip_low", 1, 1.0),
        ("levels", [1, 2], (1, 2)),
        ("share", [0, 0.5], (0.0, 0.5)),
        ("side", "high", Side.HIGH),
        ("limit", 3, 3),
        ("limit", None, None),
        ("where", 7, 7),
        ("where", "some", "some"),
        ("file", "a/b", Path("a/b")),
        ("names", {"a": "b"}, {"a": "b"}),
        ("mode", "sequence", "sequence"),
        ("sampling", {"temperature": 0, "stop": ["\n"]}, Sampling(temperature=0.0, stop=("\n",))),
        ("kl", {"coef": 0.1}, InLoss(coef=0.1)),
        ("kl", {"discount": 1}, InReward(discount=1.0)),
    ],
)
def test_values_that_bind(key: str, given: object, expected: object) -> None:
    value = bound({key: given})[key]
    assert value == expected and type(value) is type(expected)


@pytest.mark.parametrize(
    ("key", "given", "place", "expected"),
    [
        ("rounds", "3", ".rounds", "a valid integer"),
        ("rounds", 3.0, ".rounds", "a valid integer"),
        ("rounds", True, ".rounds", "a valid integer"),
        ("is_masked", 1, ".is_masked", "a valid boolean"),
        ("clip_low", "0.2", ".clip_low", "a valid number"),
        ("clip_low", math.nan, ".clip_low", "a finite number"),
        ("clip_low", math.inf, ".clip_low", "a finite number"),
        ("mode", "tokens", ".mode", "'token' or 'sequence'"),
        ("levels", [1, "2"], ".levels[1]", "a valid integer"),
        ("share", [0.5], ".share[1]", "a value"),
        ("limit", "3", ".limit", "a valid integer"),
        ("where", 1.5, ".where", "a valid string or a valid integer"),
        ("names", {"a": 1}, ".names.a", "a valid string"),
        ("sampling", {"temperature": "1"}, ".sampling.temperature", "a valid number"),
        ("sampling", {"top_p": 0.0}, ".sampling.top_p", "a number in (0, 1]"),
        ("kl", {"coef": "1"}, ".kl.coef", "a valid number"),
    ],
)
def test_values_that_are_refused(key: str, given: object, place: str, expected: str) -> None:
    """Each error names the place inside the recipe, the value and what would have been right."""
    first = refused({key: given})[0]
    assert first.where == f"stages[2].objective{place}"
    assert first.expected == expected


def test_unknown_setting_suggests_the_nearest() -> None:
    (error,) = refused({"clip_hgih": 0.3})
    assert error.where == "stages[2].objective.clip_hgih"
    assert error.fix == "Did you mean clip_high?"


def test_unknown_setting_of_a_nested_table_suggests_among_its_own() -> None:
    (error,) = refused({"sampling": {"temprature": 0.3}})
    assert error.where == "stages[2].objective.sampling.temprature"
    assert error.fix == "Did you mean temperature?"
    assert "clip_high" not in error.expected


def test_neighbours_are_suggested_but_not_accepted() -> None:
    errors = ErrorList("recipe test")
    assert bind(InReward, {"clip": 1}, where="s", errors=errors, neighbours=["objective.clip"]) is None
    places = {error.where: error.fix for error in errors.errors}
    assert places["s.clip"] == "Did you mean objective.clip?"
    assert places["s.discount"] == "Set it: it has no default."


def test_all_errors_are_reported_in_one_exception() -> None:
    errors = ErrorList("recipe test")
    bind(objective, {"rounds": "3", "clip_hgih": 1}, where="a", errors=errors)
    bind(InLoss, {}, where="b", errors=errors)
    with pytest.raises(RecipeError) as caught:
        errors.raise_if_any()
    assert caught.value.where == "recipe test" and "3 settings" in str(caught.value)
    assert all(place in str(caught.value) for place in ("a.rounds", "a.clip_hgih", "b.coef"))
    assert "Write the value without quotes." in str(caught.value)


def test_a_single_error_is_raised_as_itself_and_none_is_silent() -> None:
    errors = ErrorList("recipe test")
    errors.raise_if_any()
    bind(InLoss, {}, where="b", errors=errors)
    with pytest.raises(RecipeError, match=r"^b\.coef: "):
        errors.raise_if_any()


def test_something_that_is_no_table() -> None:
    (error,) = refused(3)
    assert error.where == "stages[2].objective" and "a table" in error.expected


def test_dataclass_errors_keep_their_place() -> None:
    errors = ErrorList("recipe test")
    assert bind_dataclass(Sampling, {"max_tokens": 0}, where="benchmark.sampling", errors=errors) is None
    assert [(e.where, e.expected) for e in errors.errors] == [("benchmark.sampling.max_tokens", "an integer ≥ 1")]
    assert bind_dataclass(Sampling, {"max_tokens": 1}, where="", errors=errors) == Sampling(max_tokens=1)


def test_a_nested_table_keeps_what_the_default_instance_says() -> None:
    """The default is Sampling(temperature=0.5); a table that sets only top_k must not put temperature back to 1."""
    mild = Sampling(temperature=0.5)

    def sample(*, sampling: Sampling = mild) -> None: ...

    assert bound({"sampling": {"top_k": 3}}, sample) == {"sampling": Sampling(temperature=0.5, top_k=3)}


def test_parameters_handed_over_by_code_are_no_settings() -> None:
    def template(tokenizer: object, *, system: str = "", generation_config: object | None = None) -> None: ...

    assert [s.name for s in settings_of(template)] == ["system"]


def test_model_forbids_extras_and_is_made_once() -> None:
    model = settings_model(InLoss)
    assert model.model_config["extra"] == "forbid"
    assert settings_model(InLoss) is model


def test_nearest_has_no_opinion_on_the_unlike() -> None:
    assert nearest("zzz", ["rounds", "epochs"]) is None
