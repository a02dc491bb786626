"""Whether the parts of a recipe fit together: data sets by kind, stages by what they start from and name."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from lydian.errors import RecipeError
from lydian.recipes.bind import ErrorList
from lydian.recipes.judge import BASE
from lydian.recipes.recipe import DataSet, stages_named
from lydian.training.algorithms import ALGORITHMS, Algorithm
from lydian.training.settings import StageSettings
from lydian.training.stage import require_used


@dataclass(slots=True, kw_only=True)
class Fit:
    """Gathers what does not fit, each with its place.

    table  the recipe's table
    sets   its data sets, as far as they could be bound
    """

    errors: ErrorList
    table: Mapping[str, Any]
    sets: Mapping[str, DataSet] = field(default_factory=dict)

    def data(self, place: str, name: str, kinds: Seq[str]) -> None:
        """The named set exists and has a kind that is taken; a set with errors of its own is not blamed twice."""
        if name in self.sets and self.sets[name].settings.kind not in kinds:
            self.errors.add(
                where=place,
                given=f"{name!r}, a set of {self.sets[name].settings.kind}",
                expected=f"a set of {' or '.join(kinds)}",
                fix=f'Name another set, or set data.{name}.kind = "{kinds[0]}".',
            )
        sets = self.table.get("data")
        known = [key for key in sets if key != "root"] if isinstance(sets, Mapping) else []
        if name not in known:
            self.errors.add_unknown(place, name, known, kind="data set")

    def starts(self, index: int) -> list[str]:
        """The base and the stages before this one that train a policy, by name."""
        rows = [(table, ALGORITHMS.get(str(table.get("algorithm")))) for table in self.table["stages"][:index]]
        return [BASE, *(str(table.get("name", row.name)) for table, row in rows if row is not None and row.is_policy)]

    def stage(
        self,
        index: int,
        head: Mapping[str, Any],
        algorithm: Algorithm,
        settings: StageSettings,
        verifier: Mapping[str, Any],
    ) -> None:
        """Whether a stage has the data, start and models that its algorithm needs, and names none that it cannot use.

        head  its keys of `recipes.schema.stage`
        """
        place = f"stages[{index}]"
        self.data(f"{place}.data", head["data"], algorithm.kinds)
        if head["start"] not in self.starts(index):
            self.errors.add_unknown(f"{place}.start", head["start"], self.starts(index), kind="policy trained before")
        self._adapter(place, head)
        is_judged_apart = algorithm.objective is not None and not algorithm.is_policy
        given = () if algorithm.mixes is None or settings.on_policy_share == 1 else (algorithm.mixes,)
        self._named_set(f"{place}.heldout", head["heldout"], algorithm.kinds if is_judged_apart else (), algorithm)
        self._named_set(f"{place}.given_data", head["given_data"], given, algorithm)
        try:
            require_used(algorithm, settings)
        except RecipeError as error:
            self.errors.add(where=f"{place}.{error.where}", given=error.given, expected=error.expected, fix=error.fix)
        if settings.ptx is not None:
            self.data(f"{place}.ptx.data", settings.ptx.data, ("conversations",))
        self._needed(f"{place}.teacher", head["teacher"], algorithm.needs_teacher, "a model to learn from", algorithm)
        critic = {} if settings.critic is None else {"start": settings.critic.start}
        named = {"verifier": verifier, "teacher": {"teacher": head["teacher"]}, "critic.start": critic}
        before = [str(table.get("name", table.get("algorithm"))) for table in self.table["stages"][:index]]
        for key, value in named.items():
            for name in stages_named(value):
                if name not in before:
                    self.errors.add_unknown(f"{place}.{key}", name, before, kind="stage before this one")

    def _adapter(self, place: str, head: Mapping[str, Any]) -> None:
        model = self.table.get("model")
        if head["adapter"] is not None and isinstance(model, Mapping) and model.get("adapter"):
            self.errors.add(
                where=f"{place}.adapter",
                given="an adapter over the model's own adapter",
                expected="one of the two",
                fix="Remove model.adapter, and give an adapter to the stages that shall train one.",
            )

    def _named_set(self, place: str, name: str | None, kinds: Seq[str], algorithm: Algorithm) -> None:
        """A set of one of the kinds is named; none is, where no kind is of use."""
        self._needed(place, name, bool(kinds), "the name of a data set", algorithm)
        if name is not None and kinds:
            self.data(place, name, kinds)

    def _needed(self, place: str, value: str | None, is_needed: bool, what: str, algorithm: Algorithm) -> None:
        """A key is there exactly where the algorithm has a use for it."""
        if is_needed == (value is not None):
            return
        self.errors.add(
            where=place,
            given="nothing" if value is None else f"{value!r} with {algorithm.name}",
            expected=f"{what}: {algorithm.name} needs one" if is_needed else "nothing: it would not be used",
            fix="Set it." if is_needed else "Remove it.",
        )
