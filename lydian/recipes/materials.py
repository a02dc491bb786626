"""What a recipe names, made real: data sets, template, verifiers, benchmark, model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch

from lydian.data.arithmetic import GENERATORS
from lydian.data.problems import Conversation, Preference, Problem, check_unique_ids
from lydian.data.rows import load_conversations, load_preferences, load_problems
from lydian.data.selection import drop_duplicates, limit, take_share
from lydian.errors import DataError, RecipeError
from lydian.evaluation.benchmark import Benchmark
from lydian.models.load import LoadedModel, is_bfloat16_fast, load_model
from lydian.models.policy import Policy
from lydian.recipes.recipe import DataSet, Recipe, VerifierSettings
from lydian.rollout.local import LocalEngine
from lydian.text.encode import encode_preference
from lydian.text.template import Template, make_template
from lydian.verifiers.verifier import Verifier, make_verifier

_LOADERS: dict[str, Callable[..., Any]] = {
    "problems": load_problems,
    "conversations": load_conversations,
    "preferences": load_preferences,
}
_TYPES = {"problems": Problem, "conversations": Conversation, "preferences": Preference}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSet:
    """A data set of a recipe after selection.

    items    what stages train on or answer
    facts    for the manifest: name, path, digest, num, licence
    notes    what was left out and why, one line each
    """

    items: tuple[Any, ...]
    facts: dict[str, Any]
    notes: tuple[str, ...]


def load_set(recipe: Recipe, name: str, template: Template) -> LoadedSet:
    """Loads and selects one data set: duplicates out, then the share, then length, then the limit.

    Raises DataError if nothing is left, RecipeError if a generator makes another kind than the recipe says.
    """
    data = recipe.data[name]
    settings = data.settings
    items, facts, notes = _generated(data) if settings.generator else _read(recipe, data)
    if settings.unique and settings.kind == "problems":  # replies to imitate or compare may share a question
        items, num_repeated = drop_duplicates(items)
        notes += [f"{num_repeated} rows with the text of another left out"] * bool(num_repeated)
    items = take_share(items, *settings.share, settings.share_seed)
    if settings.max_tokens is not None:
        fitting = tuple(item for item in items if _num_tokens(item, template) <= settings.max_tokens)
        notes += [f"{len(items) - len(fitting)} of {len(items)} rows longer than {settings.max_tokens} tokens left out"]
        items = fitting
    if settings.limit is not None:
        items = limit(items, settings.limit, settings.share_seed)
    if not items:
        raise DataError(
            where=f"data.{name}",
            given="no row left" + "".join(f"; {note}" for note in notes),
            expected="at least one row",
            fix="Widen share, limit or max_tokens, or check the file.",
        )
    check_unique_ids(items, where=f"data.{name}")
    return LoadedSet(items=items, facts={"name": name, **facts, "num": len(items)}, notes=tuple(notes))


def _generated(data: DataSet) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    settings = data.settings
    assert settings.generator is not None
    items = GENERATORS[settings.generator](**data.generator)
    if not isinstance(items[0], _TYPES[settings.kind]):
        raise RecipeError(
            where=f"data.{data.name}.generator",
            given=f"{settings.generator}, which makes {type(items[0]).__name__}s",
            expected=f"a generator of {settings.kind}",
            fix="Set `kind` to what the generator makes.",
        )
    digest = hashlib.sha256(repr((settings.generator, sorted(data.generator.items()))).encode()).hexdigest()
    return tuple(items), {"path": f"generator {settings.generator}", "digest": digest, "licence": "Apache-2.0"}, []


def _read(recipe: Recipe, data: DataSet) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    settings = data.settings
    paths = [recipe.locate(path) for path in settings.path]
    loaded = _LOADERS[settings.kind](
        paths[0] if len(paths) == 1 else paths,
        columns=settings.columns,
        on_bad_row=settings.on_bad_row,
        split=settings.split,
    )
    notes = [f"skipped {place}: {reason}" for place, reason in loaded.skipped]
    facts = {"path": ", ".join(settings.path), "digest": loaded.digest, "licence": loaded.licence}
    return loaded.items, facts, notes


def _num_tokens(item: Problem | Conversation | Preference, template: Template) -> int:
    if isinstance(item, Problem):
        return len(template.encode_prompt(item.messages))
    if isinstance(item, Conversation):
        return len(template.encode_conversation(item.messages).tokens)
    return max(len(encoded.tokens) for encoded in encode_preference(item, template))


def build_template(recipe: Recipe, model: LoadedModel) -> Template:
    """The recipe's template around the model's tokenizer."""
    return make_template(recipe.template.kind, model.tokenizer, **recipe.template.settings)


def build_verifier(settings: VerifierSettings) -> Verifier:
    """The verifier that a recipe names."""
    return make_verifier(settings.name, **settings.settings)


def build_benchmark(recipe: Recipe, problems: Seq[Problem], template: Template) -> Benchmark:
    """The recipe's frozen evaluator."""
    settings = recipe.benchmark
    return Benchmark(
        name=settings.name,
        problems=tuple(problems),
        template=template,
        sampling=settings.sampling,
        verifier=build_verifier(settings.verifier),
        num_samples=settings.num_samples,
    )


def build_policy(recipe: Recipe) -> tuple[LoadedModel, Policy]:
    """The model that trains, with its adapter if the recipe has one; the seed fixes the adapter's first weights."""
    torch.manual_seed(recipe.seed)
    loaded = load_model(recipe.model.source, adapter=recipe.model.adapter)
    is_bfloat16 = recipe.model.dtype == "bfloat16" or (recipe.model.dtype == "auto" and is_bfloat16_fast())
    dtype = torch.bfloat16 if is_bfloat16 else torch.float32
    loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return loaded, Policy(loaded.model, compute_dtype=dtype, is_checkpointed=recipe.model.is_checkpointed)


def build_engine(recipe: Recipe, template: Template) -> LocalEngine:
    """A local engine around a second copy of the model, without adapters."""
    torch.manual_seed(recipe.seed)  # for a model that begins with random weights
    return LocalEngine.of(recipe.model.source, template)
