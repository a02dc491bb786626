"""Problems of the optional package reasoning-gym, by the task's name."""

from __future__ import annotations

import importlib

from lydian.data.problems import Message, Problem
from lydian.errors import InputError, MissingExtraError


def generate(*, task: str, size: int = 200, seed: int = 0) -> tuple[Problem, ...]:
    """Problems that a task of reasoning-gym generates: the same for the same size, seed and version of the package.

    task  name of the data set, such as leg_counting
    size  number of problems
    seed  of the generator

    The gold answer is the package's own; a task whose questions have several right answers needs a verifier of its own.
    Raises MissingExtraError without the package, InputError for a task that it does not have.
    """
    try:
        package = importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            where="generator reasoning_gym",
            given="no package reasoning-gym",
            expected="it to be installed",
            fix="pip install reasoning-gym",
        ) from error
    try:
        entries = list(package.create_dataset(task, size=size, seed=seed))
    except ValueError as error:
        raise InputError(
            where="reasoning_gym, task", given=repr(task), expected=f"a task that it has ({error})", fix="Correct it."
        ) from error
    return tuple(
        Problem(
            id=f"{task}:{seed}:{number}",
            messages=(Message(role="user", content=str(entry["question"])),),
            answer=str(entry["answer"]),
            source=f"reasoning_gym/{task}",
            metadata={"task": task},
        )
        for number, entry in enumerate(entries)
    )
