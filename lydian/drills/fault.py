"""A fault: one function of the real pipeline, replaced by a wrong one, and the guard that must notice.

The same guard looks at the healthy and at the broken pipeline. An alarm on the healthy one is as bad as silence on the
broken one.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a guard saw.

    measured   the numbers, as text
    is_caught  whether they are an alarm
    """

    measured: str
    is_caught: bool


Guard = Callable[[], Finding]
"""Runs a piece of the pipeline and measures it. Its name is a sentence that holds when nothing is wrong."""

Wrong = Callable[[Callable[..., Any]], Callable[..., Any]]
"""From the right function to the wrong one in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A classic mistake that can be switched on.

    name     as the command line has it
    mistake  what goes wrong
    signal   what one would see of it in a run
    place    the function that goes wrong, `module:name` or `module:Class.name`
    wrong    what takes its place
    guard    what must notice
    """

    name: str
    mistake: str
    signal: str
    place: str
    wrong: Wrong
    guard: Guard

    @property
    def guard_name(self) -> str:
        """The guard's name as words."""
        return self.guard.__name__.replace("_", " ")

    def check(self, is_broken: bool) -> Finding:
        """What the guard sees, with the fault switched on or not; the caller's random state is kept."""
        switch = substituted(self.place, self.wrong) if is_broken else nullcontext()
        with torch.random.fork_rng(devices=[]), switch:
            torch.manual_seed(0)
            return self.guard()


@contextmanager
def substituted(place: str, wrong: Wrong) -> Iterator[None]:
    """Puts wrong(original) in the place of a function while the block runs.

    It is seen by everything that looks the name up in that module or class at the time of the call.

    >>> import textwrap
    >>> with substituted("textwrap:dedent", lambda original: lambda text: original(text).upper()):
    ...     textwrap.dedent("  a")
    'A'
    >>> textwrap.dedent("  a")
    'a'
    """
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    owner = functools.reduce(getattr, outer, importlib.import_module(module))
    original = vars(owner)[name]
    setattr(owner, name, wrong(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
