"""A resolved recipe: model, template, data, benchmark and stages, with every default explicit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, Literal

from lydian.data.trajectory import Sampling
from lydian.errors import RecipeError
from lydian.models.adapters import AdapterSettings
from lydian.training.settings import StageSettings

Kind = Literal["problems", "conversations", "preferences", "feedback", "stepwise", "labelled"]
STAGE_PREFIX = "stage:"
"""Before a stage's name, where a setting takes a model: what the stage trained."""
OPTIONAL = ("adapter", "heldout", "given_data", "teacher")
"""Keys of a stage that only some have."""
TEXTS = ("description", "expect")
"""Keys that say something to people and change no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The checkpoint that a run starts from.

    source           a folder, a .gguf file, a hub id, or a name: tiny, smollm2-135m
    dtype            numbers to compute in; auto is bfloat16 where this machine multiplies it faster, else float32
    adapter          adapter to train on the frozen weights; without one all weights are trained
    new_tokens       texts that are to be single tokens, added where the tokenizer lacks them; with an adapter (lora,
                     dora) their rows of the embedding are trained too
    memory_gib       GiB that a stage may take, by plan; by default 85 % of what is free when the run begins. With room
                     for it, freed memory stays with the process. Where updates do not fit, activations of as few
                     layers as will do are recomputed in the backward pass: more time for the same numbers
    """

    source: str
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    adapter: AdapterSettings | None = None
    new_tokens: tuple[str, ...] = ()
    memory_gib: float | None = None

    def __post_init__(self) -> None:
        _check_memory("model.memory_gib", self.memory_gib)

    @property
    def memory_bytes(self) -> int | None:
        """The budget in bytes, where there is one."""
        return _in_bytes(self.memory_gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine that samples rollouts, from a copy of the model. Benchmarks are sampled in float32 whatever it is.

    dtype       of the copy; auto is bfloat16 where this machine multiplies it faster, else float32. What bfloat16
                rounds is a gap between rollouts and the policy that learns from them, which each round reports as
                behaviour_gap and `correction` weighs
    memory_gib  GiB for what sampling needs beside the weights, which gives how many completions run side by side; by
                default half of model.memory_gib, or of what is free when sampling begins
    """

    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    memory_gib: float | None = None

    def __post_init__(self) -> None:
        _check_memory("engine.memory_gib", self.memory_gib)

    @property
    def memory_bytes(self) -> int | None:
        """The budget in bytes, where there is one."""
        return _in_bytes(self.memory_gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSettings:
    """How messages become tokens: `make_template(kind, tokenizer, **settings)`."""

    kind: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Where a data set comes from and what is kept of it.

    kind        what its rows become: problems to answer, conversations to imitate, preferences between replies,
                feedback (thumbs up or down) on single ones, stepwise replies with a label a step, labelled texts
    path        files, relative to data.root or the current folder, or a hub id
    generator   name of a generator of problems, instead of a path; its settings stand beside it
    mixture     weights of other sets of this kind that it is made of, instead of a path: name → weight. The settings
                of `lydian.data.mixtures.mix` stand beside it; what is kept of the sets is said at them
    split       recorded in each row; picks the split of a hub data set
    columns     column names of the rows: what we call it → what the file calls it
    prompt      text around the last question of each row, {question} in it once
    labels      of feedback: what words other than true, false, 1 and 0 mean: { up = true, down = false }
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
    mixture: dict[str, float] | None = None
    split: str = ""
    columns: dict[str, str] | None = None
    prompt: str = "{question}"
    labels: dict[str, bool] | None = None
    on_bad_row: Literal["stop", "skip"] = "stop"
    share: tuple[float, float] = (0.0, 1.0)
    share_seed: int = 0
    unique: bool = True
    limit: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        origins = {
            "path": bool(self.path),
            "generator": self.generator is not None,
            "mixture": self.mixture is not None,
        }
        given = [name for name, is_given in origins.items() if is_given]
        if len(given) != 1:
            found = " and ".join(given) or "neither a path nor a generator nor a mixture"
            _refuse("DataSettings", found, "one of the three", "Set `path`, `generator` or `mixture`.")
        if self.labels is not None and self.kind != "feedback":
            _refuse("DataSettings.labels", f"labels of {self.kind}", "labels of feedback only", "Remove it.")
        if self.prompt.count("{question}") != 1:
            _refuse(
                "DataSettings.prompt", repr(self.prompt), "{question} in it, once", "Put it where the question goes."
            )
        if self.mixture is not None:
            self._check_mixture(self.mixture)
        low, high = self.share
        if not 0 <= low < high <= 1:
            _refuse("DataSettings.share", list(self.share), "[low, high] with 0 ≤ low < high ≤ 1", "Correct it.")
        for name in ("limit", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                _refuse(f"DataSettings.{name}", value, "an integer ≥ 1", "Leave it out for no limit.")

    def _check_mixture(self, weights: Mapping[str, float]) -> None:
        light = {name: weight for name, weight in weights.items() if weight <= 0}
        if light or not weights:
            _refuse("DataSettings.mixture", dict(light), "sets with weights > 0", "Correct it.")
        own = {item.name for item in fields(self) if getattr(self, item.name) != item.default}
        for name in sorted(own - {"kind", "mixture"}):
            _refuse(f"DataSettings.{name}", f"{name} of a mixture", "none: the sets have their own", "Set it there.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A named data set of a recipe; `generator` holds the settings of its generator or mixture, if it has one."""

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
    start      name of the earlier stage whose weights it starts from, and is compared with; or base
    adapter    a new adapter over those weights; None trains what the start trained
    heldout    name of the data set that a stage which trains a scorer is judged on; None for one that trains a policy
    given_data name of the texts beside the samples of an algorithm that mixes both
    teacher    model that is distilled
    verifier, sampling  of its rollouts; None where the algorithm has none
    objective, advantage  keyword arguments of the algorithm's functions
    settings   how long and how fast it trains
    """

    name: str
    algorithm: str
    data: str
    start: str
    adapter: AdapterSettings | None
    heldout: str | None
    given_data: str | None
    teacher: str | None
    verifier: VerifierSettings | None
    sampling: Sampling | None
    objective: Mapping[str, Any]
    advantage: Mapping[str, Any]
    settings: StageSettings

    @property
    def sets(self) -> list[str]:
        """The data sets that it names."""
        texts = self.settings.ptx.data if self.settings.ptx else None
        return [name for name in (self.data, self.heldout, self.given_data, texts) if name is not None]


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
    side         further benchmarks by name, which no stage trains for: what is lost elsewhere
    explained    every setting, in the order of the recipe
    """

    name: str
    description: str
    expect: str
    seed: int
    model: ModelSettings
    engine: EngineSettings
    template: TemplateSettings
    root: Path
    data: Mapping[str, DataSet]
    benchmark: BenchmarkSettings
    side: Mapping[str, BenchmarkSettings]
    stages: tuple[Stage, ...]
    explained: tuple[Explained, ...] = field(compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The recipe as JSON values, every default explicit; `load_recipe` reads it back to an equal recipe."""
        names = ("name", "description", "expect", "seed", "model", "engine")
        head = {name: as_json(getattr(self, name)) for name in names}
        data = {name: as_json(item.settings) | as_json(item.generator) for name, item in self.data.items()}
        return head | {
            "template": {"kind": self.template.kind, **as_json(self.template.settings)},
            "data": {"root": str(self.root), **data},
            "benchmark": _benchmark_dict(self.benchmark),
            "side_benchmarks": {name: _benchmark_dict(benchmark) for name, benchmark in self.side.items()},
            "stages": [_stage_dict(stage) for stage in self.stages],
        }

    @property
    def digest(self) -> str:
        """SHA-256 of everything that can change a number: texts and the data's folder are left out."""
        table = {key: value for key, value in self.as_dict().items() if key not in TEXTS}
        table["data"] = {name: value for name, value in table["data"].items() if name != "root"}
        return hashlib.sha256(json.dumps(table, sort_keys=True, allow_nan=False).encode()).hexdigest()

    def with_parts(self, names: Iterable[str]) -> list[str]:
        """The data sets of these names and those that mixtures among them are made of, each once."""
        parts = [part for name in names for part in (name, *(self.data[name].settings.mixture or ()))]
        return list(dict.fromkeys(parts))

    def locate(self, path: str) -> str:
        """Where a data set's file is: under the data's folder or else the current one; hub ids stay as they are."""
        found = next((place for place in (self.root / path, Path(path)) if place.exists()), None)
        return path if found is None else str(found)


def stages_named(value: Any) -> list[str]:
    """The stages whose models are named in settings, as `stage:NAME`, anywhere within."""
    if isinstance(value, Mapping):
        return [name for item in value.values() for name in stages_named(item)]
    is_reference = isinstance(value, str) and value.startswith(STAGE_PREFIX)
    return [value.removeprefix(STAGE_PREFIX)] if is_reference else []


def with_stage_folders(value: Any, folder_of: Callable[[str], Path]) -> Any:
    """The settings with the folder of a stage's model in place of each `stage:NAME`."""
    if isinstance(value, Mapping):
        return {key: with_stage_folders(item, folder_of) for key, item in value.items()}
    return str(folder_of(stages_named(value)[0])) if stages_named(value) else value


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


def _benchmark_dict(benchmark: BenchmarkSettings) -> dict[str, Any]:
    table: dict[str, Any] = as_json(benchmark)
    return table | {"verifier": _verifier_dict(benchmark.verifier)}


def _stage_dict(stage: Stage) -> dict[str, Any]:
    table: dict[str, Any] = {key: getattr(stage, key) for key in ("name", "algorithm", "data", "start")}
    table |= {key: as_json(getattr(stage, key)) for key in OPTIONAL if getattr(stage, key) is not None}
    table["objective"] = as_json(stage.objective)
    if stage.verifier is not None:
        table["verifier"] = _verifier_dict(stage.verifier)
    if stage.sampling is not None:
        table["sampling"] = as_json(stage.sampling)
    if stage.advantage:
        table["advantage"] = as_json(stage.advantage)
    return table | as_json(stage.settings)


def _in_bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * (1 << 30))


def _check_memory(where: str, gib: float | None) -> None:
    if gib is not None and not gib > 0:
        _refuse(where, gib, "a number above 0", "Leave it out.")


def _refuse(where: str, given: object, expected: str, fix: str) -> None:
    raise RecipeError(where=where, given=str(given), expected=expected, fix=fix)
