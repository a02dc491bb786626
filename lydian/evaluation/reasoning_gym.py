"""Problems of the optional package reasoning-gym, by the task's name."""

from __future__ import annotations

import importlib
import json
from typing import Any

from lydian.data.problems import Message, Problem
from lydian.errors import InputError
from lydian.verifiers.reasoning_gym import absent


def generate(*, task: str, size: int = 200, seed: int = 0, **settings: Any) -> tuple[Problem, ...]:
    """Problems that a task of reasoning-gym generates: the same for the same settings and version of the package.

    task      name of the data set, such as leg_counting
    size      number of problems
    seed      of the generator
    settings  of the task's own configuration

    The gold answer is the package's own, if the task has one. Many may be right, so the verifier `reasoning_gym` asks
    the task's scorer; the metadata say how to make the problem again.

    Raises MissingExtraError without the package, InputError for a task or settings that it does not have.
    """
    try:
        package = importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        raise absent("generator reasoning_gym") from error
    settings = {"size": size, "seed": seed, **settings}
    try:
        dataset = package.create_dataset(task, **settings)
        entries = [dataset[index] for index in range(size)]
    except (ValueError, TypeError, AssertionError) as error:
        raise InputError(
            where="reasoning_gym, task",
            given=f"{task!r} with {settings}",
            expected=f"a task that it has, and its settings ({error})",
            fix="Correct it.",
        ) from error
    described = json.dumps(settings, sort_keys=True)
    return tuple(
        Problem(
            id=f"{task}:{seed}:{index}",
            messages=(Message(role="user", content=str(entry["question"])),),
            answer=None if entry["answer"] is None else str(entry["answer"]),
            source=f"reasoning_gym/{task}",
            metadata={"task": task, "index": index, "settings": described},
        )
        for index, entry in enumerate(entries)
    )
