"""The dry run: every shipped recipe passes it, and it finds what would stop a run, all at once."""

from __future__ import annotations

import io
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from lydian.data.arithmetic import GENERATORS
from lydian.models.load import named_folder
from lydian.recipes.check import STAND_IN, STAND_INS, check_recipe
from lydian.recipes.layers import shipped_names
from lydian.recipes.load import load_recipe
from lydian.recipes.materials import TYPES
from lydian.recipes.recipe import Kind
from lydian.training.algorithms import ALGORITHMS

needs_tiny = pytest.mark.skipif(not named_folder("tiny").is_dir(), reason="the bundled model `tiny` is not there")

QUICK = "mawps_smollm2"
"""Checked every time: chat template, adapter, composed verifier, all three kinds of stage. The others are slow."""


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files of data are not there, wherever the tests run; one test puts some there."""
    monkeypatch.setenv("LYDIAN_DATA", str(tmp_path / "nowhere"))


def checked(name: str | Path, *overrides: str) -> tuple[list[str], str]:
    """What went wrong, and what was said."""
    said = io.StringIO()
    problems = check_recipe(load_recipe(name, overrides), Console(file=said, width=200))
    return problems, said.getvalue()


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_recipes_bind(name: str):
    recipe = load_recipe(name)
    assert recipe.name == name and recipe.description and recipe.expect and recipe.stages


@needs_tiny
@pytest.mark.parametrize(
    "name", [n if n == QUICK else pytest.param(n, marks=pytest.mark.slow) for n in shipped_names()]
)
def test_shipped_recipes_run_two_steps_of_each_stage(name: str):
    """Every stage does take its two steps: the dry run rewards something that the tiny model can do."""
    problems, said = checked(name)
    assert problems == []
    stages = load_recipe(name).stages
    steps = {stage.name: 0 if ALGORITHMS[stage.algorithm].objective is None else 2 for stage in stages}
    assert [line for line in said.splitlines() if line.startswith("stage")] == [
        f"stage {name}: {num} optimiser steps done" for name, num in steps.items()
    ]
    reads_files = any(item.settings.path for item in load_recipe(name).data.values())
    assert ("generated rows stand in" in said) == reads_files


def test_something_stands_in_for_data_of_every_kind():
    assert STAND_INS.keys() == set(get_args(Kind))
    for kind, generator in STAND_INS.items():
        assert all(isinstance(item, TYPES[kind]) for item in GENERATORS[generator](**STAND_IN))


@needs_tiny
def test_all_that_goes_wrong_is_told_at_once():
    """Expert iteration by `choice`, which wants letters where the answers are numbers, and GRPO on samples of a
    truncated distribution: both are found in one go; SFT before them is fine."""
    problems, said = checked(
        "quickstart", 'stages.expert_iteration.verifier={ name = "choice" }', "stages.grpo.sampling.top_p=0.9"
    )
    assert len(problems) == 2
    assert problems[0].startswith("stage expert_iteration:") and "choice" in problems[0]
    assert problems[1].startswith("stage grpo:") and "top_p 0.9" in problems[1]
    assert "stage sft: 2 optimiser steps done" in said and "stage grpo: 2" not in said


@needs_tiny
def test_data_that_is_there_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A damaged row of a file that is there is found, with its line."""
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"question": "2 + 2?", "answer": "2+2=4 #### 4"}\n{"question": "3 + 3?"}\n')
    monkeypatch.setenv("LYDIAN_DATA", str(tmp_path))
    problems, said = checked("mawps_smollm2")
    assert len(problems) == 1 and problems[0].startswith("stage sft:") and "train.jsonl:2" in problems[0]
    assert "data.heldout: not there" in said and "data.demonstrations" not in said
