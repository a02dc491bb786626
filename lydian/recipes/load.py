"""`load_recipe`: a TOML file and overrides in, a resolved `Recipe` out, or one error that lists everything wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from lydian.data.arithmetic import GENERATORS
from lydian.data.mixtures import mix
from lydian.data.trajectory import Sampling
from lydian.recipes import schema
from lydian.recipes.bind import ErrorList, bind, bind_dataclass, settings_of
from lydian.recipes.fit import Fit
from lydian.recipes.layers import Layers, read_layers
from lydian.recipes.recipe import (
    BenchmarkSettings,
    DataSet,
    DataSettings,
    EngineSettings,
    Explained,
    ModelSettings,
    Recipe,
    Stage,
    TemplateSettings,
    VerifierSettings,
    as_json,
)
from lydian.text.template import ChatTemplate, PlainTemplate
from lydian.training.algorithms import ALGORITHMS, Algorithm
from lydian.training.settings import StageSettings
from lydian.verifiers import VERIFIERS

TEMPLATES = {"chat": ChatTemplate, "plain": PlainTemplate}
TABLES = ("model", "engine", "template", "data", "benchmark", "side_benchmarks", "stages")
ROLLOUT_KEYS = ("verifier", "sampling", "advantage")
HEAD_KEYS = ("name", "algorithm", "data", "start", "adapter", "heldout", "given_data", "teacher")
STAGE_KEYS = (*HEAD_KEYS, "objective", *ROLLOUT_KEYS)


def load_recipe(name_or_path: str | Path, overrides: Seq[str] = ()) -> Recipe:
    """The recipe of that name or file, with overrides, every default explicit.

    name_or_path  a shipped recipe, or the path of a .toml file (or of a run's recipe.json)
    overrides     `key.path=value` each; the value is TOML or else a bare string, `none` unsets; a stage goes by its
                  name or index (`stages.grpo.rounds=20`); `data.train=path` replaces a set's path only

    Raises one RecipeError that lists everything wrong, each with its place in the recipe.
    """
    return _Resolver(read_layers(name_or_path, list(overrides))).resolve()


class _Resolver:
    """Binds a recipe's tables one after the other, gathering errors and explanations on the way."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self.table = layers.table
        self.errors: ErrorList = layers.errors
        self.explained: list[Explained] = []
        self.fit = Fit(errors=self.errors, table=self.table)

    def resolve(self) -> Recipe:
        own = {key: value for key, value in self.table.items() if key not in TABLES}
        head = self._bind(schema.head, own, "", TABLES)
        model = self._bind_dataclass(ModelSettings, self._required("model"), "model")
        engine = self._bind_dataclass(EngineSettings, self.table.get("engine", {}), "engine")
        template = self._template()
        root, data = self._data_sets()
        benchmark = self._benchmark(self._required("benchmark"), "benchmark")
        side = self._side_benchmarks()
        stages = self._stages(benchmark)
        self.errors.raise_if_any()
        assert head and model and engine and template and benchmark  # each that is None has left an error
        return Recipe(
            **head,
            model=model,
            engine=engine,
            template=template,
            root=root,
            data=data,
            benchmark=benchmark,
            side=side,
            stages=tuple(stages),
            explained=tuple(self._with_stage_names(stages)),
        )

    def _template(self) -> TemplateSettings | None:
        table = self.table.get("template", {})
        kind = self._choice(schema.template, table, "template", "kind", TEMPLATES)
        if kind is None:
            return None
        rest = {key: value for key, value in table.items() if key != "kind"}
        settings = self._bind(TEMPLATES[kind], rest, "template", ["kind"])
        return None if settings is None else TemplateSettings(kind=kind, settings=settings)

    def _data_sets(self) -> tuple[Path, dict[str, DataSet]]:
        table = dict(self._required("data") or {})
        if "root" not in table and os.environ.get("LYDIAN_DATA"):
            table["root"] = os.environ["LYDIAN_DATA"]
            self.layers.record("data.root", table["root"], "variable LYDIAN_DATA")
        own = {"root": table.pop("root")} if "root" in table else {}
        head = self._bind(schema.data, own, "data")
        found = {name: self._data_set(name, item) for name, item in table.items()}
        sets = {name: item for name, item in found.items() if item}
        self.fit.sets = sets
        for name, item in sets.items():
            for part in item.settings.mixture or ():
                self.fit.data(f"data.{name}.mixture", part, (item.settings.kind,))
                if part in sets and sets[part].settings.mixture is not None:
                    fix = f"Write the sets that {part!r} is made of."
                    self.errors.add(
                        where=f"data.{name}.mixture", given=f"the mixture {part!r}", expected="sets", fix=fix
                    )
        return Path(head["root"] if head else "data"), sets

    def _data_set(self, name: str, table: Any) -> DataSet | None:
        place = f"data.{name}"
        generator = table.get("generator") if isinstance(table, Mapping) else None
        is_mixture = isinstance(table, Mapping) and table.get("mixture") is not None
        if generator is None and not is_mixture:
            settings = self._bind_dataclass(DataSettings, table, place)
            return None if settings is None else DataSet(name=name, settings=settings, generator={})
        if generator not in GENERATORS and not is_mixture:
            self.errors.add_unknown(f"{place}.generator", str(generator), GENERATORS, kind="generator")
            return None
        # A key that both know, such as `split`, is the generator's.
        maker: Callable[..., Any] = mix if is_mixture else GENERATORS[str(generator)]
        known = [setting.name for setting in settings_of(maker)]
        rest = {key: value for key, value in table.items() if key not in known}
        settings = self._bind_dataclass(DataSettings, rest, place, known)
        bound = self._bind(maker, {key: table[key] for key in known if key in table}, place)
        if settings is None or bound is None:
            return None
        return DataSet(name=name, settings=settings, generator=bound)

    def _side_benchmarks(self) -> dict[str, BenchmarkSettings]:
        """Those that only watch what is lost; each is a table like `benchmark`, by default under its own name."""
        tables = self.table.get("side_benchmarks", {})
        if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
            where, fix = "side_benchmarks", "Write [side_benchmarks.NAME] as you write [benchmark]."
            self.errors.add(where=where, given=repr(tables), expected="a table of tables", fix=fix)
            return {}
        found = {n: self._benchmark({"name": n, **table}, f"side_benchmarks.{n}") for n, table in tables.items()}
        return {name: benchmark for name, benchmark in found.items() if benchmark is not None}

    def _benchmark(self, table: dict[str, Any] | None, place: str) -> BenchmarkSettings | None:
        if table is None:
            return None
        own = {key: value for key, value in table.items() if key not in ("verifier", "sampling")}
        self.layers.lay_under(place, own, {"name": own.get("data", "")}, f"{place}.data")
        head = self._bind(schema.benchmark, own, place, ["verifier", "sampling"])
        verifier = self._verifier(table.get("verifier", {}), f"{place}.verifier")
        sampling = self._bind_dataclass(Sampling, table.get("sampling", {}), f"{place}.sampling")
        if head:
            self.fit.data(f"{place}.data", head["data"], ("problems",))
        if head is None or verifier is None or sampling is None:
            return None
        return BenchmarkSettings(**head, verifier=verifier, sampling=sampling)

    def _verifier(self, table: Any, place: str) -> VerifierSettings | None:
        name = self._choice(schema.named, table, place, "name", VERIFIERS)
        if name is None:
            return None
        rest = {key: value for key, value in table.items() if key != "name"}
        settings = self._bind(VERIFIERS[name].make, rest, place, ["name"])
        if settings is None:
            return None
        self._explain_by(f"{place}.name", VERIFIERS[name].make)
        for group in ("parts", "choices"):  # a verifier made of others
            if isinstance(settings.get(group), Mapping):
                parts = {key: self._verifier(part, f"{place}.{group}.{key}") for key, part in settings[group].items()}
                settings[group] = {key: {"name": p.name, **p.settings} for key, p in parts.items() if p is not None}
                self.explained = [item for item in self.explained if item.key != f"{place}.{group}"]  # the parts speak
        if "inner" in settings:
            inner = self._verifier(settings["inner"], f"{place}.inner")
            settings["inner"] = {} if inner is None else {"name": inner.name, **inner.settings}
            self.explained = [item for item in self.explained if item.key != f"{place}.inner"]
        return VerifierSettings(name=name, settings=settings)

    def _explain_by(self, key: str, made: Callable[..., Any]) -> None:
        """What a chosen name means, in the words of what it names: the first line of its docstring."""
        doc = (made.__doc__ or "").partition("\n")[0]
        self.explained = [replace(item, doc=doc or item.doc) if item.key == key else item for item in self.explained]

    def _stages(self, benchmark: BenchmarkSettings | None) -> list[Stage]:
        tables = self.table.get("stages", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self.errors.add(where="stages", given=repr(tables), expected="a list of tables", fix="Write [[stages]].")
            return []
        stages = [self._stage_at(index, table, benchmark) for index, table in enumerate(tables)]
        names = [table.get("name", table.get("algorithm")) for table in tables]
        for index, name in enumerate(names):
            if name in ("base", *names[:index]):
                self.errors.add(
                    where=f"stages[{index}].name",
                    given=f"{name!r}, which {'means the model before training' if name == 'base' else 'another has'}",
                    expected="a name of its own",
                    fix="Set `name` in this stage.",
                )
        return [stage for stage in stages if stage is not None]

    def _stage_at(self, index: int, given: dict[str, Any], benchmark: BenchmarkSettings | None) -> Stage | None:
        place = f"stages[{index}]"
        name = given.get("algorithm")
        if not isinstance(name, str) or name not in ALGORITHMS:
            if name is None:
                self._bind(schema.stage, {key: given[key] for key in ("name", "data") if key in given}, place)
            else:
                self.errors.add_unknown(f"{place}.algorithm", str(name), ALGORITHMS, kind="algorithm")
            return None
        algorithm = ALGORITHMS[name]
        table = dict(given)
        self.layers.lay_under(place, table, {"name": name}, "algorithm")
        self.layers.lay_under(place, table, algorithm.defaults, f"default of {name}")
        starts = self.fit.starts(index)
        self.layers.lay_under(place, table, {"start": starts[-1]}, "the stages before")
        head = self._bind(schema.stage, {key: table[key] for key in HEAD_KEYS if key in table}, place)
        loop = {key: value for key, value in table.items() if key not in STAGE_KEYS}
        elsewhere = [f"{key}.{s.name}" for key, part in _parts(algorithm).items() for s in settings_of(part)]
        settings = self._bind_dataclass(StageSettings, loop, place, [*STAGE_KEYS, *elsewhere])
        parts = {key: self._bind(part, table.get(key, {}), f"{place}.{key}") for key, part in _parts(algorithm).items()}
        sampling, verifier = self._rollout_settings(table, place, algorithm, benchmark)
        if head is not None:
            named = {} if verifier is None else verifier.settings
            self.fit.stage(index, head, algorithm, settings or StageSettings(), named)
        if head is None or settings is None or None in parts.values():
            return None
        return Stage(
            **head,
            verifier=verifier,
            sampling=sampling,
            objective=parts.get("objective") or {},
            advantage=parts.get("advantage") or {},
            settings=settings,
        )

    def _rollout_settings(
        self, table: dict[str, Any], place: str, algorithm: Algorithm, benchmark: BenchmarkSettings | None
    ) -> tuple[Sampling | None, VerifierSettings | None]:
        used = [*_parts(algorithm), *(("verifier", "sampling") if algorithm.data == "problems" else ())]
        for key in ROLLOUT_KEYS:
            if key in table and key not in used:
                self.errors.add(
                    where=f"{place}.{key}",
                    given=f"{key} settings",
                    expected=f"none: {algorithm.name} has no {key}",
                    fix="Remove them, or choose an algorithm that draws rollouts.",
                )
        if algorithm.data != "problems":
            return None, None
        sampling = table.get("sampling", {})
        if isinstance(sampling, dict):
            seed = self.table.get("seed", 0)
            sampling = dict(sampling)
            self.layers.lay_under(f"{place}.sampling", sampling, {"seed": seed}, "seed")
        bound = self._bind_dataclass(Sampling, sampling, f"{place}.sampling")
        if "verifier" in table:
            return bound, self._verifier(table["verifier"], f"{place}.verifier")
        if benchmark is None or algorithm.credit == "teacher":  # the teacher judges: answers need not be known
            return bound, None
        self.layers.origins[f"{place}.verifier"] = "benchmark.verifier"
        inherited = {"name": benchmark.verifier.name, **benchmark.verifier.settings}
        return bound, self._verifier(inherited, f"{place}.verifier")

    def _required(self, name: str) -> Any:
        """The table of that name; None, with an error, if it is absent or no table."""
        table = self.table.get(name)
        if isinstance(table, dict):
            return table
        given = "nothing" if table is None else repr(table)
        self.errors.add(where=name, given=given, expected="a table", fix=f"Write [{name}] with its settings.")
        return None

    def _choice(
        self, keys: Callable[..., None], table: Any, place: str, key: str, known: Mapping[str, Any]
    ) -> str | None:
        """The value of a key that chooses which further settings there are."""
        own = {key: table[key]} if isinstance(table, Mapping) and key in table else {}
        bound = self._bind(keys, own if isinstance(table, Mapping) else table, place)
        if bound is None:
            return None
        if bound[key] not in known:
            kind = place.rpartition(".")[2]
            self.errors.add_unknown(f"{place}.{key}", bound[key], known, kind=kind)
            return None
        return bound[key]

    def _bind(
        self, function: Callable[..., Any], table: Any, place: str, neighbours: Seq[str] = ()
    ) -> dict[str, Any] | None:
        bound = bind(function, table, where=place, errors=self.errors, neighbours=neighbours)
        if bound is not None:
            self._explain(function, bound, place)
        return bound

    def _bind_dataclass(self, kind: Callable[..., Any], table: Any, place: str, neighbours: Seq[str] = ()) -> Any:
        if table is None:
            return None
        bound = bind_dataclass(kind, table, where=place, errors=self.errors, neighbours=neighbours)
        if bound is not None:
            self._explain(kind, _values(bound), place)
        return bound

    def _explain(self, function: Callable[..., Any], values: Mapping[str, Any], place: str) -> None:
        for setting in settings_of(function):
            key = f"{place}.{setting.name}" if place else setting.name
            value = values[setting.name]
            if is_dataclass(value):
                self._explain(type(value), _values(value), key)
            else:
                origin = self.layers.origin(key)
                self.explained.append(Explained(key=key, value=as_json(value), doc=setting.doc, origin=origin))

    def _with_stage_names(self, stages: Seq[Stage]) -> list[Explained]:
        """Each key once (the last to explain it bound it), with stages by name, as people write overrides."""
        keys = {f"stages[{index}]": f"stages.{stage.name}" for index, stage in enumerate(stages)}
        renamed = []
        for item in {item.key: item for item in self.explained}.values():
            before, dot, rest = item.key.partition(".")
            key = f"{keys.get(before, before)}{dot}{rest}"
            renamed.append(Explained(key=key, value=item.value, doc=item.doc, origin=item.origin))
        return renamed


def _parts(algorithm: Algorithm) -> dict[str, Callable[..., Any]]:
    """The algorithm's functions that have settings, by the table that holds them."""
    parts = {"objective": algorithm.objective, "advantage": algorithm.advantage}
    return {key: part for key, part in parts.items() if part is not None}


def _values(instance: Any) -> dict[str, Any]:
    return {item.name: getattr(instance, item.name) for item in fields(instance) if item.init}
