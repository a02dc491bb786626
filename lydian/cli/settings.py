"""Settings written as KEY=VALUE on the command line, and a verifier made from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lydian.errors import InputError

if TYPE_CHECKING:
    from lydian.verifiers.verifier import Verifier


def read_settings(texts: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE each, as in a recipe: the value is TOML or else a bare string. Raises InputError for another form.

    >>> read_settings(["digits=6", "percent=either"])
    {'digits': 6, 'percent': 'either'}
    """
    from lydian.recipes.layers import parse_value

    table = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            fix = "Write limit=200 or marker='####'."
            raise InputError(where=f"setting {text!r}", given=repr(text), expected="key=value", fix=fix)
        table[key] = parse_value(value)
    return table


def named_verifier(name: str, texts: Sequence[str], *, command: str) -> Verifier:
    """The verifier of that name, its settings bound as a recipe's would be.

    command  what asks for it, for the error

    Raises RecipeError for everything wrong at once: an unknown name, unknown keys, wrong values.
    """
    from lydian.recipes.bind import ErrorList, bind
    from lydian.verifiers import VERIFIERS, make_verifier

    errors = ErrorList(command)
    if name not in VERIFIERS:
        errors.add_unknown("--verifier", name, VERIFIERS, kind="verifier")
    table = read_settings(texts)
    errors.raise_if_any()
    bound = bind(VERIFIERS[name].make, table, where=name, errors=errors)
    errors.raise_if_any()
    return make_verifier(name, **(bound or {}))
