"""Commands that look and change nothing: show (samples token by token), explain (settings, objectives)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lydian.cli.runs import Overrides, RecipeName
from lydian.errors import InputError

if TYPE_CHECKING:
    from lydian.recipes.recipe import Recipe
    from lydian.text.template import Encoded, Template

UNITS = (
    (r"_tokens$", "tokens"),
    (r"_seconds$", "seconds"),
    (r"_bytes$", "bytes"),
    (r"_steps$", "optimiser steps"),
    (r"^num_samples$", "completions a problem"),
    (r"^(rounds|epochs)$", "times"),
    (r"^batch_size$", "sequences or pairs"),
    (r"^problems_per_round$", "problems"),
    (r"^limit$", "rows"),
)
"""Units by the form of a setting's name."""


def explain(
    recipe: RecipeName,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Print every setting of a recipe and who set it; or what an algorithm or objective is.

    For each setting: value, unit, meaning, and where the value came from. For an algorithm, loss or advantage:
    equation, symbols, settings, when to use it, traps, source.
    """
    from lydian.recipes.layers import shipped_names
    from lydian.recipes.load import load_recipe
    from lydian.recipes.reference import explain_name

    if recipe not in shipped_names():
        text = explain_name(recipe)
        if text is not None:
            typer.echo(text)
            return
    resolved = load_recipe(recipe, overrides or ())
    rows = [
        {"key": item.key, "value": item.value, "unit": unit_of(item.key), "meaning": item.doc, "from": item.origin}
        for item in resolved.explained
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    width = max(len(row["key"]) for row in rows)
    for row in rows:
        value = json.dumps(row["value"], ensure_ascii=False) if row["value"] is not None else "none"
        unit = f" {row['unit']}" if row["unit"] and row["value"] is not None else ""
        typer.echo(f"{row['key']:<{width}}  {value}{unit}  [{row['from']}]")
        if row["meaning"]:
            typer.echo(f"    {row['meaning']}")


def unit_of(key: str) -> str:
    """The unit that a setting's name implies, or nothing.

    >>> unit_of("stages.grpo.sampling.max_tokens"), unit_of("model.source")
    ('tokens', '')
    """
    name = key.rpartition(".")[2]
    return next((unit for pattern, unit in UNITS if re.search(pattern, name)), "")


def show(
    recipe: RecipeName,
    overrides: Overrides = None,
    data: Annotated[str | None, typer.Option(help="Which data set; by default the first stage's.")] = None,
    num: Annotated[int, typer.Option(min=1, help="How many samples.")] = 1,
    start: Annotated[int, typer.Option(min=0, help="Index of the first.")] = 0,
) -> None:
    """Print samples of a data set, token by token.

    For each token: id, text, role, and whether it is trained.
    """
    from rich.console import Console

    from lydian.recipes.load import load_recipe
    from lydian.recipes.materials import load_set
    from lydian.text.show import plain_table, rich_table, token_table

    resolved = load_recipe(recipe, overrides or ())
    name = data or (resolved.stages[0].data if resolved.stages else resolved.benchmark.data)
    if name not in resolved.data:
        raise InputError(
            where="--data", given=repr(name), expected=f"one of {', '.join(resolved.data)}", fix="Name one of these."
        )
    template = _template(resolved)
    loaded = load_set(resolved, name, template)
    console = Console()
    for note in loaded.notes:
        console.print(f"data.{name}: {note}", highlight=False, markup=False)
    for index, item in enumerate(loaded.items[start : start + num], start=start):
        for title, encoded in _encodings(item, template):
            console.print(f"data.{name}[{index}]  {item.id}  {title}", highlight=False, markup=False)
            rows = token_table(encoded, template)
            if console.is_terminal:
                console.print(rich_table(rows))
            else:
                typer.echo(plain_table(rows))


def _template(recipe: Recipe) -> Template:
    """The recipe's template; of the model only the tokenizer is read where it lies in a folder."""
    from lydian.models.load import load_model, locate
    from lydian.models.read import read_tokenizer
    from lydian.models.vocabulary import add_tokens
    from lydian.text.template import make_template

    place = locate(recipe.model.source)
    has_tokenizer = (place / "tokenizer_config.json").is_file()
    tokenizer = read_tokenizer(place) if has_tokenizer else load_model(recipe.model.source).tokenizer
    add_tokens(tokenizer, recipe.model.new_tokens)
    return make_template(recipe.template.kind, tokenizer, **recipe.template.settings)


def _encodings(item: Any, template: Template) -> Iterator[tuple[str, Encoded]]:
    """What training or sampling sees of an item, with a title."""
    from lydian.data.labelled import Labelled, Stepwise
    from lydian.data.problems import Conversation, Feedback, Message, Preference
    from lydian.text.encode import encode_preference, encode_reply
    from lydian.text.label_sites import encode_labelled, encode_stepwise
    from lydian.text.template import Encoded

    if isinstance(item, Conversation):
        yield "conversation", template.encode_conversation(item.messages)
    elif isinstance(item, Preference):
        chosen, rejected = encode_preference(item, template)
        yield "chosen", chosen
        yield "rejected", rejected
    elif isinstance(item, Feedback):
        title = "desirable" if item.is_desirable else "undesirable"
        yield title, encode_reply(item.messages, item.reply, template)
    elif isinstance(item, Stepwise):
        sequence, whole = encode_stepwise(item, template), encode_reply(item.messages, item.reply, template)
        roles = whole.roles[: len(sequence.tokens)]
        labels = ", ".join("none" if label is None else f"{label:g}" for label in item.labels)
        yield f"steps; labels {labels}", Encoded(tokens=sequence.tokens, trained=sequence.trained, roles=roles)
    elif isinstance(item, Labelled):
        sequence = encode_labelled(item, template, (item.label,))
        is_answered = item.messages[-1].role == "assistant"
        messages = item.messages if is_answered else (*item.messages, Message(role="assistant", content="0"))
        roles = template.encode_conversation(messages).roles[: len(sequence.tokens)]
        yield f"class {item.label!r}", Encoded(tokens=sequence.tokens, trained=sequence.trained, roles=roles)
    else:
        tokens = template.encode_prompt(item.messages)
        # The prompt is a prefix of any conversation that goes on from it: that is where its roles are known.
        whole = template.encode_conversation((*item.messages, Message(role="assistant", content=item.answer or "0")))
        untrained = (False,) * len(tokens)
        yield (
            f"prompt; answer {item.answer!r}",
            Encoded(tokens=tokens, trained=untrained, roles=whole.roles[: len(tokens)]),
        )
