"""Every objective, advantage and estimator by name, read from the modules of `lydian.objectives`, never listed."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import lydian.objectives

Kind = Literal["loss", "advantage", "divergence", "correction", "return", "other"]

_KINDS: dict[str, Kind] = {
    "advantage": "advantage",
    "divergence": "divergence",
    "correction": "correction",
    "returns": "return",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A public function of `lydian.objectives`.

    name      its usual name
    kind      what it gives: a loss for the learner, an advantage, …
    module    the module's name within `lydian.objectives`
    function  the function
    """

    name: str
    kind: Kind
    module: str
    function: Callable[..., Any]

    @property
    def is_loss(self) -> bool:
        """Whether the learner can train with it."""
        return self.kind == "loss"


@cache
def catalogue() -> dict[str, Entry]:
    """All public functions of `lydian.objectives` by name, in the order of modules and of their text.

    >>> catalogue()["clip"].kind, catalogue()["clip"].module
    ('loss', 'policy_gradient')
    """
    entries: dict[str, Entry] = {}
    for info in pkgutil.iter_modules(lydian.objectives.__path__):
        module = importlib.import_module(f"lydian.objectives.{info.name}")
        own = [f for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__]
        for function in own:
            name = function.__name__
            if not name.startswith("_"):
                kind = "loss" if _returns_loss(function) else _KINDS.get(info.name, "other")
                entries[name] = Entry(name=name, kind=kind, module=info.name, function=function)
    return entries


def losses() -> dict[str, Entry]:
    """The entries that are losses."""
    return {name: entry for name, entry in catalogue().items() if entry.is_loss}


def _returns_loss(function: Callable[..., Any]) -> bool:
    return str(inspect.signature(function).return_annotation) == "Loss"
