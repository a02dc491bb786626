"""A resolved recipe: model, template, data, benchmark and stages, with every default explicit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, Literal

from lydian.data.trajectory import Sampling
from lydian.errors import RecipeError
from lydian.models.adapters import AdapterSettings
from lydian.training.settings import StageSettings

Kind = Literal["problems", "conversations", "preferences"]
TEXTS = ("description", "expect")
"""Keys that say something to people and change no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The checkpoint that a run starts from.

    source           a folder, a .gguf file, a hub id, or a name: tiny, smollm2-135m
    dtype            numbers to compute in; auto is bfloat16 where this machine multiplies it faster, else float32
    adapter          LoRA adapter to train; without one all weights are trained
    is_checkpointed  recompute activations in the backward pass: less memory, a third more time
    """

    source: str
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    adapter: AdapterSettings | None = None
    is_checkpointed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSettings:
    """How messages become tokens: `make_template(kind, tokenizer, **settings)`."""

    kind: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Where a data set comes from and what is kept of it.

    kind        what its rows become: problems to answer, conversations to imitate, preferences between replies
    path        files, relative to data.root or the current folder, or a hub id
    generator   name of a generator of problems, instead of a path; its settings stand beside it
    split       recorded in each row; picks the split of a hub data set
    columns     column names of the rows: what we call it → what the file calls it
    on_bad_row  stop at a malformed row, or skip it and list what was skipped
    share       part of the set to keep, [low, high) of a hash of the text in [0, 1): disjoint parts share no text
    share_seed  shuffles which texts fall into which part
    unique      keep one of several problems with the same text
    limit       keep at most this many rows
    max_tokens  drop rows that are longer when encoded, and count them
    """

    kind: Kind = "problems"
    path: tuple[str, ...] = ()
    generator: str | None = None
    split: str = ""
    columns: dict[str, str] | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    share: tuple[float, float] = (0.0, 1.0)
    share_seed: int = 0
    unique: bool = True
    limit: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if bool(self.path) == (self.generator is not None):
            given = "both a path and a generator" if self.path else "neither a path nor a generator"
            _refuse("DataSettings", given, "one of the two", "Set `path` or `generator`.")
        low, high = self.share
        if not 0 <= low < high <= 1:
            _refuse("DataSettings.share", list(self.share), "[low, high] with 0 ≤ low < high ≤ 1", "Correct it.")
        for name in ("limit", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                _refuse(f"DataSettings.{name}", value, "an integer ≥ 1", "Leave it out for no limit.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A named data set of a recipe; `generator` holds the settings of its generator, if it has one."""

    name: str
    settings: DataSettings
    generator: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSettings:
    """A verifier's name and its settings, as `make_verifier(name, **settings)` takes them."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkSettings:
    """The frozen evaluator of every stage."""

    name: str
    data: str
    num_samples: int
    verifier: VerifierSettings
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of training.

    name       unique within the recipe
    algorithm  a row of `lydian.training.algorithms.ALGORITHMS`
    data       name of the data set: what it imitates, or draws rollouts for
    verifier, sampling  of its rollouts; None where the algorithm has none
    objective, advantage  keyword arguments of the algorithm's functions
    settings   how long and how fast it trains
    """

    name: str
    algorithm: str
    data: str
    verifier: VerifierSettings | None
    sampling: Sampling | None
    objective: Mapping[str, Any]
    advantage: Mapping[str, Any]
    settings: StageSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One setting of a resolved recipe: its key as an override takes it, its value, what it means, who set it."""

    key: str
    value: Any
    doc: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that determines a run.

    name         of the recipe
    description  what it does
    expect       the numbers to expect
    seed         of weights' initialisation, order of data and rollouts
    root         folder that paths of data sets are relative to
    explained    every setting, in the order of the recipe
    """

    name: str
    description: str
    expect: str
    seed: int
    model: ModelSettings
    template: TemplateSettings
    root: Path
    data: Mapping[str, DataSet]
    benchmark: BenchmarkSettings
    stages: tuple[Stage, ...]
    explained: tuple[Explained, ...] = field(compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The recipe as JSON values, every default explicit; `load_recipe` reads it back to an equal recipe."""
        head = {name: as_json(getattr(self, name)) for name in ("name", "description", "expect", "seed", "model")}
        data = {name: as_json(item.settings) | as_json(item.generator) for name, item in self.data.items()}
        return head | {
            "template": {"kind": self.template.kind, **as_json(self.template.settings)},
            "data": {"root": str(self.root), **data},
            "benchmark": as_json(self.benchmark) | {"verifier": _verifier_dict(self.benchmark.verifier)},
            "stages": [_stage_dict(stage) for stage in self.stages],
        }

    @property
    def digest(self) -> str:
        """SHA-256 of everything that can change a number: texts and the data's folder are left out."""
        table = {key: value for key, value in self.as_dict().items() if key not in TEXTS}
        table["data"] = {name: value for name, value in table["data"].items() if name != "root"}
        return hashlib.sha256(json.dumps(table, sort_keys=True, allow_nan=False).encode()).hexdigest()

    def locate(self, path: str) -> str:
        """Where a data set's file is: under the data's folder or else the current one; hub ids stay as they are."""
        found = next((place for place in (self.root / path, Path(path)) if place.exists()), None)
        return path if found is None else str(found)


def as_json(value: Any) -> Any:
    """Dataclasses as tables, tuples as lists, enumerations and paths as strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: as_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, PurePath) else value


def _verifier_dict(verifier: VerifierSettings) -> dict[str, Any]:
    return {"name": verifier.name, **as_json(verifier.settings)}


def _stage_dict(stage: Stage) -> dict[str, Any]:
    table: dict[str, Any] = {"name": stage.name, "algorithm": stage.algorithm, "data": stage.data}
    table["objective"] = as_json(stage.objective)
    if stage.verifier is not None:
        table["verifier"] = _verifier_dict(stage.verifier)
    if stage.sampling is not None:
        table["sampling"] = as_json(stage.sampling)
    if stage.advantage:
        table["advantage"] = as_json(stage.advantage)
    return table | as_json(stage.settings)


def _refuse(where: str, given: object, expected: str, fix: str) -> None:
    raise RecipeError(where=where, given=str(given), expected=expected, fix=fix)
