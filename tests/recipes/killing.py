"""Runs of a small recipe, and processes that run it until they kill themselves at a chosen place."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pkgutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECIPE = """
name = "small"

[model]
source = "MODEL"
dtype = "float32"

[template]
kind = "plain"
prompt = "{question}\\nSteps:"

[data.heldout]
generator = "arithmetic"
split = "heldout"
num = 8
min_level = 1
max_level = 2

[data.demonstrations]
kind = "conversations"
generator = "arithmetic_solutions"
num = 16
min_level = 1
max_level = 2

[data.train]
generator = "arithmetic"
split = "train"
num = 16
min_level = 1
max_level = 2

[data.preferences]
kind = "preferences"
generator = "arithmetic_preferences"
num = 8
min_level = 1
max_level = 2

# Random weights solve nothing; four in ten of their replies have a digit.
[benchmark]
name = "arithmetic"
data = "heldout"
verifier = { name = "pattern", pattern = "[0-9]" }
sampling = { temperature = 1.0, max_tokens = 16 }
"""

SFT = """
[[stages]]
algorithm = "sft"
data = "demonstrations"
batch_size = 4
checkpoint_steps = 2
optimiser = { learning_rate = 1e-3 }
"""

STAGES = (
    SFT
    + """
[[stages]]
algorithm = "expert_iteration"
data = "train"
self_test = false
rounds = 2
problems_per_round = 8
num_samples = 4
keep_per_problem = 2
batch_size = 4
checkpoint_steps = 1
sampling = { temperature = 1.0, max_tokens = 16 }
optimiser = { learning_rate = 1e-3 }

[[stages]]
algorithm = "grpo"
data = "train"
self_test = false
rounds = 3
epochs = 2
problems_per_round = 4
num_samples = 4
batch_size = 8
checkpoint_steps = 1
kl = { coef = 0.01 }
sampling = { temperature = 1.0, max_tokens = 16 }
optimiser = { learning_rate = 1e-3 }

[[stages]]
algorithm = "dpo"
data = "preferences"
epochs = 2
batch_size = 4
checkpoint_steps = 1
optimiser = { learning_rate = 1e-3 }
"""
)


@dataclass(frozen=True, kw_only=True)
class Kill:
    """SIGKILL at a call of a function: when it begins, or with `is_after` when it has returned.

    owner, name  the module or class (as `package.module:Class`) and what it calls its function
    matching     keyword arguments that the call must have
    nth          which of the calls that match, from 1
    """

    owner: str
    name: str
    matching: Mapping[str, Any] = field(default_factory=dict)
    nth: int = 1
    is_after: bool = False


def run(text: str, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Runs or resumes the recipe with this text; returns its summary."""
    import torch
    from rich.console import Console

    from lydian.recipes.load import load_recipe
    from lydian.recipes.run import run_recipe

    torch.set_num_threads(1)
    path = out.parent / "small.toml"
    path.write_text(text)
    return run_recipe(load_recipe(path), out, resume=resume, console=Console(quiet=True))


def run_until_killed(text: str, out: Path, kill: Kill, *, resume: bool = False) -> None:
    """Runs it in a process of its own and waits for that to be killed; fails if the place was never reached."""
    # One server imports torch once, and every process is forked from it before anything has been computed.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lydian.recipes.run", "lydian.recipes.load"])
    process = context.Process(target=_run_and_die, args=(text, out, kill, resume))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"the run ended with {process.exitcode} before {kill}"


def _run_and_die(text: str, out: Path, kill: Kill, resume: bool) -> None:
    owner, name = pkgutil.resolve_name(kill.owner), kill.name
    whole = getattr(owner, name)
    num_calls = 0

    @functools.wraps(whole)
    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += all(kwargs.get(key) == value for key, value in kill.matching.items())
        is_last = num_calls == kill.nth
        if is_last and not kill.is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = whole(*args, **kwargs)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)
    run(text, out, resume=resume)
