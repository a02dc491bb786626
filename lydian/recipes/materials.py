"""What a recipe names, made real: data sets, template, verifiers, benchmark, model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lydian.data.arithmetic import GENERATORS
from lydian.data.labelled import Labelled, Stepwise
from lydian.data.mixtures import Mixture, mix
from lydian.data.problems import Conversation, Feedback, Preference, Problem, check_unique_ids
from lydian.data.rows import (
    load_conversations,
    load_feedback,
    load_labelled,
    load_preferences,
    load_problems,
    load_stepwise,
)
from lydian.data.selection import drop_duplicates, limit, take_share
from lydian.errors import DataError, RecipeError, TemplateError
from lydian.evaluation.benchmark import Benchmark
from lydian.models.adapters import AdapterSettings
from lydian.models.heads import Head, head_for
from lydian.models.load import Dtype, LoadedModel, compute_dtype, is_adapter_folder, load_model
from lydian.models.policy import Policy
from lydian.models.save import check_adapter_base, place_base
from lydian.recipes.recipe import BenchmarkSettings, DataSet, DataSettings, Recipe, VerifierSettings
from lydian.rollout.local import MEMORY_SHARE, LocalEngine
from lydian.text.encode import lengths
from lydian.text.template import Template, make_template
from lydian.training.algorithms import Algorithm
from lydian.verifiers.verifier import Verifier, make_verifier

_LOADERS: dict[str, Callable[..., Any]] = {
    "problems": load_problems,
    "conversations": load_conversations,
    "preferences": load_preferences,
    "feedback": load_feedback,
    "stepwise": load_stepwise,
    "labelled": load_labelled,
}
TYPES: dict[str, type] = {
    "problems": Problem,
    "conversations": Conversation,
    "preferences": Preference,
    "feedback": Feedback,
    "stepwise": Stepwise,
    "labelled": Labelled,
}
"""What the rows of a set become, by its kind."""
NUM_NAMED = 5
"""Rows that a note names, of those left out for one reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSet:
    """A data set of a recipe after selection.

    items    what stages train on or answer
    facts    for the manifest: name, path, digest, num, licence, left_out (reason → rows), parts of a mixture
    notes    what was left out and why, one line each
    """

    items: tuple[Any, ...]
    facts: dict[str, Any]
    notes: tuple[str, ...]


def load_set(recipe: Recipe, name: str, template: Template) -> LoadedSet:
    """Loads and selects one data set: duplicates out, then the share, then length, then the limit; or mixes others.

    The prompt is put around what is left of the share, so that equal texts fall into equal shares whatever it is.

    Raises DataError if nothing is left, RecipeError if a generator makes another kind than the recipe says,
    TemplateError for a row that the template cannot lay out, unless bad rows are skipped.
    """
    data = recipe.data[name]
    settings = data.settings
    if settings.mixture is not None:
        return _mixed(recipe, data, template)
    left_out = _LeftOut()
    items, facts = _generated(data) if settings.generator else _read(recipe, data, left_out)
    if settings.unique and settings.kind == "problems":  # replies to imitate or compare may share a question
        items, num_repeated = drop_duplicates(items)
        left_out.add("repeated", num_repeated, f"{num_repeated} rows with the text of another left out")
    items = tuple(_asked(item, settings.prompt) for item in take_share(items, *settings.share, settings.share_seed))
    if settings.max_tokens is not None or settings.on_bad_row == "skip":
        items = _fitting(items, template, settings, left_out)
    if settings.limit is not None:
        items = limit(items, settings.limit, settings.share_seed)
    if not items:
        raise DataError(
            where=f"data.{name}",
            given="no row left" + "".join(f"; {note}" for note in left_out.notes),
            expected="at least one row",
            fix="Widen share, limit or max_tokens, or check the file.",
        )
    check_unique_ids(items, where=f"data.{name}")
    facts = {"name": name, **facts, "num": len(items), "left_out": left_out.counts}
    return LoadedSet(items=items, facts=facts, notes=(*_balance(items), *left_out.notes))


def _asked(item: Any, prompt: str) -> Any:
    """The item with a text around its last question."""
    place = max((k for k, message in enumerate(item.messages) if message.role == "user"), default=None)
    if place is None or prompt == "{question}":
        return item
    question = item.messages[place]
    asked = replace(question, content=prompt.replace("{question}", question.content))
    return replace(item, messages=(*item.messages[:place], asked, *item.messages[place + 1 :]))


@dataclass(slots=True)
class _LeftOut:
    """What a set leaves out.

    counts       reason → rows
    about, rows  what to say: of each reason, and of single rows
    """

    counts: dict[str, int] = field(default_factory=dict)
    about: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)

    def add(self, reason: str, num: int, note: str, rows: Seq[str] = ()) -> None:
        if num:
            self.counts[reason] = num
            self.about.append(note)
            self.rows += rows

    @property
    def notes(self) -> list[str]:
        return [*self.about, *self.rows]


def _generated(data: DataSet) -> tuple[tuple[Any, ...], dict[str, Any]]:
    settings = data.settings
    assert settings.generator is not None
    items = GENERATORS[settings.generator](**data.generator)
    if not isinstance(items[0], TYPES[settings.kind]):
        raise RecipeError(
            where=f"data.{data.name}.generator",
            given=f"{settings.generator}, which makes {type(items[0]).__name__}s",
            expected=f"a generator of {settings.kind}",
            fix="Set `kind` to what the generator makes.",
        )
    digest = hashlib.sha256(repr((settings.generator, sorted(data.generator.items()))).encode()).hexdigest()
    return tuple(items), {"path": f"generator {settings.generator}", "digest": digest, "licence": "Apache-2.0"}


def _read(recipe: Recipe, data: DataSet, left_out: _LeftOut) -> tuple[tuple[Any, ...], dict[str, Any]]:
    settings = data.settings
    paths = [recipe.locate(path) for path in settings.path]
    loaded = _LOADERS[settings.kind](
        paths[0] if len(paths) == 1 else paths,
        columns=settings.columns,
        on_bad_row=settings.on_bad_row,
        split=settings.split,
        **({"labels": settings.labels} if settings.kind == "feedback" else {}),
    )
    num, rows = len(loaded.skipped), [f"skipped {place}: {reason}" for place, reason in loaded.skipped]
    left_out.add("skipped", num, f"{num} of {num + len(loaded.items)} rows skipped", rows)
    return loaded.items, {"path": ", ".join(settings.path), "digest": loaded.digest, "licence": loaded.licence}


def _fitting(items: Seq[Any], template: Template, settings: DataSettings, left_out: _LeftOut) -> tuple[Any, ...]:
    """The items that the template can lay out and that are not too long; the others are counted and named."""
    kept: list[Any] = []
    long: list[Any] = []
    bad: list[str] = []
    for item in items:
        try:
            num_tokens = max(lengths(item, template))
        except TemplateError as error:
            if settings.on_bad_row == "stop":
                fix = f'{error.fix} on_bad_row = "skip" leaves such rows out.'
                where = f"{item.id!r}: {error.where}"
                raise TemplateError(where=where, given=error.given, expected=error.expected, fix=fix) from error
            bad.append(f"skipped {item.id}: {error}")
        else:
            (kept if settings.max_tokens is None or num_tokens <= settings.max_tokens else long).append(item)
    named = ", ".join(item.id for item in long[:NUM_NAMED]) + ", …" * (len(long) > NUM_NAMED)
    note = f"{len(long)} of {len(items)} rows longer than {settings.max_tokens} tokens left out: {named}"
    left_out.add("too_long", len(long), note)
    left_out.add("template", len(bad), f"{len(bad)} of {len(items)} rows skipped that the template cannot lay out", bad)
    return tuple(kept)


def _mixed(recipe: Recipe, data: DataSet, template: Template) -> LoadedSet:
    """Its sets, each selected as is said at it, mixed by weight; the realised shares are in facts and notes."""
    weights = dict(data.settings.mixture or {})
    sets = {name: load_set(recipe, name, template) for name in weights}
    items = {name: loaded.items for name, loaded in sets.items()}
    mixture = mix(items, weights, lambda item: sum(lengths(item, template)), **data.generator)
    notes = [*_shares(mixture, data), *_balance(mixture.items)]
    notes += [f"{name}: {note}" for name, part in sets.items() for note in part.notes]
    if not mixture.items:
        raise DataError(
            where=f"data.{data.name}",
            given="no row: " + "; ".join(notes),
            expected="room for at least one row",
            fix="Raise cap_tokens or max_epochs.",
        )
    check_unique_ids(mixture.items, where=f"data.{data.name}")
    made_of = (sorted(weights.items()), sorted(data.generator.items()), [s.facts["digest"] for s in sets.values()])
    licences = sorted({loaded.facts["licence"] or "unknown" for loaded in sets.values()})
    facts = {
        "name": data.name,
        "path": f"mixture of {', '.join(weights)}",
        "digest": hashlib.sha256(repr(made_of).encode()).hexdigest(),
        "licence": ", ".join(licences),
        "num": len(mixture.items),
        "parts": [sets[name].facts | asdict(part) for name, part in mixture.parts.items()],
    }
    return LoadedSet(items=mixture.items, facts=facts, notes=tuple(notes))


def _shares(mixture: Mixture[Any], data: DataSet) -> list[str]:
    """What came from where, and why there is not more of it."""
    notes = [
        f"{name}: {part.num_examples} rows, {part.share_examples:.1%} of the rows and {part.share_tokens:.1%} of the "
        f"tokens; wanted {part.share:.1%} of the {'rows' if data.generator['weigh_by'] == 'examples' else 'tokens'}; "
        f"{part.epochs:.2f} passes"
        for name, part in mixture.parts.items()
    ]
    end, settings = mixture.ended_by, data.generator
    is_used_up = end in mixture.parts
    why = f"{end} is used up (max_epochs {settings['max_epochs']:g})" if is_used_up else f"{end} is {settings[end]}"
    return [f"{len(mixture.items)} rows in all: {why}", *notes]


def _balance(items: Seq[Any]) -> list[str]:
    """How many pieces of feedback are desirable, and the weights that even this out."""
    wanted = [item.is_desirable for item in items if isinstance(item, Feedback)]
    num_up, num_down = sum(wanted), len(wanted) - sum(wanted)
    if not wanted:
        return []
    counts = f"{num_up} desirable and {num_down} undesirable replies"
    if not num_up or not num_down:
        return [f"{counts}: kto and bco need both"]
    # `kto` wants λ_D n_D / (λ_U n_U) between 1 and 4/3; here λ_D = 1.
    low, high = 0.75 * num_up / num_down, num_up / num_down
    return [f"{counts}: for kto an undesirable_weight of {low:.2f} to {high:.2f} evens this out"]


def build_template(recipe: Recipe, model: LoadedModel) -> Template:
    """The recipe's template around the model's tokenizer."""
    return make_template(recipe.template.kind, model.tokenizer, **recipe.template.settings)


def build_verifier(settings: VerifierSettings) -> Verifier:
    """The verifier that a recipe names."""
    return make_verifier(settings.name, **settings.settings)


def build_benchmark(settings: BenchmarkSettings, problems: Seq[Problem], template: Template) -> Benchmark:
    """A frozen evaluator."""
    return Benchmark(
        name=settings.name,
        problems=tuple(problems),
        template=template,
        sampling=settings.sampling,
        verifier=build_verifier(settings.verifier),
        num_samples=settings.num_samples,
    )


def build_policy(
    recipe: Recipe, base_folder: Path, trained: Path | None = None, adapter: AdapterSettings | None = None
) -> tuple[LoadedModel, Policy]:
    """The model that trains, with its adapter if it has one; the seed fixes an adapter's first weights.

    base_folder  where the base is written if an adapter is put on it and it lies nowhere else (see `place_base`)
    trained      the folder of a stage of the run, to go on from it; None for the base
    adapter      a new one, over those weights

    Raises ModelError for a new adapter over weights that no checkpoint holds, such as another adapter's.
    """
    torch.manual_seed(recipe.seed)
    if trained is None:
        loaded = load_model(
            recipe.model.source, adapter=adapter or recipe.model.adapter, new_tokens=recipe.model.new_tokens
        )
    else:
        loaded = load_model(trained, adapter=adapter or ("continue" if is_adapter_folder(trained) else None))
    place_base(loaded.model, loaded.tokenizer, base_folder)
    if adapter is not None:
        check_adapter_base(loaded.model)
    loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return loaded, Policy(loaded.model, compute_dtype=compute_dtype(recipe.model.dtype))


def build_engine(recipe: Recipe, template: Template, dtype: Dtype = "float32") -> LocalEngine:
    """A local engine around another copy of the model, without adapters."""
    torch.manual_seed(recipe.seed)  # for a model that begins with random weights
    return LocalEngine.of(
        recipe.model.source,
        template,
        dtype=dtype,
        memory_bytes=engine_bytes(recipe),
        new_tokens=recipe.model.new_tokens,
    )


def engine_bytes(recipe: Recipe) -> int | None:
    """What an engine may take beside its weights: its own budget, else its share of the model's; None for the same
    share of what is free."""
    whole = recipe.model.memory_bytes
    share = None if whole is None else int(MEMORY_SHARE * whole)
    return share if recipe.engine.memory_bytes is None else recipe.engine.memory_bytes


def build_sampler(recipe: Recipe, template: Template, engine: LocalEngine) -> LocalEngine:
    """What rollouts are sampled with: the engine that benchmarks have, or one with a bfloat16 copy of its own."""
    is_bfloat16 = compute_dtype(recipe.engine.dtype) == torch.bfloat16
    return build_engine(recipe, template, "bfloat16") if is_bfloat16 else engine


def make_head(algorithm: Algorithm, policy: Policy, items: Seq[Any]) -> Head | None:
    """The head that an algorithm trains beside the model, if it trains one, as wide as the data ask."""
    if algorithm.head is None:
        return None
    return head_for(algorithm.head, policy.output.weight.shape[1], items).to(policy.device)
