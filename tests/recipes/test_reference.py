"""The generated reference: complete, current, and made of what the docstrings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from lydian.recipes.reference import document, explain_name, read
from lydian.training.algorithms import ALGORITHMS
from lydian.training.catalogue import catalogue, losses
from lydian.training.learner import required_names

DOCUMENT = Path(__file__).parents[2] / "docs" / "objectives.md"


def test_the_page_is_current():
    assert DOCUMENT.read_text(encoding="utf-8") == document(), (
        "docs/objectives.md is not what the docstrings say: python -m lydian.recipes.reference > docs/objectives.md"
    )


@pytest.mark.parametrize("name", losses())
def test_every_loss_says_what_a_reader_needs(name: str):
    """Equation, every parameter, when to use it, its traps, its source and a worked number."""
    function = losses()[name].function
    reference = read(function.__doc__ or "")
    named = {part for names, _ in reference.symbols for part in names.split(", ")}
    assert set(required_names(function)) <= named
    assert {"Use", "Source"} <= reference.marked.keys()
    assert reference.example


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_row_is_explained_with_its_functions(name: str):
    text = explain_name(name)
    assert text is not None
    assert ALGORITHMS[name].summary in text
    objective = ALGORITHMS[name].objective
    assert objective is None or f"`{objective.__name__}`" in text


def test_unknown_names_are_nobodys():
    assert explain_name("grpoo") is None


def test_the_catalogue_finds_what_modules_define_and_not_what_they_import():
    """`ratio_of` is defined in divergence and imported by others; private functions are left out."""
    assert catalogue()["ratio_of"].module == "divergence"
    assert catalogue()["clip"].is_loss and not catalogue()["group_mean"].is_loss
    assert not any(name.startswith("_") for name in catalogue())
