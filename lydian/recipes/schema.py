"""Keys of a recipe's tables that are no parameters of the library's functions: what they mean, and their defaults."""

from __future__ import annotations

from lydian.models.adapters import AdapterSettings


def head(*, name: str, description: str = "", expect: str = "", seed: int = 0) -> None:
    """The recipe's own keys.

    name         name of the recipe
    description  what it does
    expect       the numbers to expect from it
    seed         fixes initial weights of adapters, order of data, and rollouts
    """


def data(*, root: str = "data") -> None:
    """root  folder that the paths of data sets are relative to (the variable LYDIAN_DATA sets its default)"""


def template(*, kind: str = "chat") -> None:
    """kind  chat: the tokenizer's own chat template; plain: a text around the question, then the reply"""


def benchmark(*, name: str, data: str, num_samples: int = 1) -> None:
    """The evaluator.

    name         for people and reports
    data         name of the set of held-out problems
    num_samples  completions a problem; 1 when greedy
    """


def stage(
    *,
    name: str,
    algorithm: str,
    data: str,
    start: str = "base",
    adapter: AdapterSettings | None = None,
    heldout: str | None = None,
    given_data: str | None = None,
    teacher: str | None = None,
) -> None:
    """A stage.

    name        unique within the recipe
    algorithm   a row of the algorithms table
    data        name of the data set: what is imitated, or what rollouts are drawn for
    start       the earlier stage whose weights it starts from and is compared with, or base; by default the last one
                that trained a policy
    adapter     a new adapter to train over those weights, which stay frozen; by default it trains what its start did
    heldout     name of the data set that a reward model or classifier is judged on, of the kind that it trains on
    given_data  name of the data set of texts beside the samples of an algorithm that mixes both
    teacher     model that is distilled: a folder, a hub id, a name, or stage:NAME for what an earlier stage trained
    """


def named(*, name: str) -> None:
    """name  which verifier"""
