"""Heads: what they compute, where they read, what they keep on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lydian.data.forest import plant
from lydian.data.labelled import Labelled, Stepwise
from lydian.data.problems import Message
from lydian.errors import DataError, ModelError
from lydian.models.heads import OUTPUTS, Head, head_for
from tests.training.toys import sequence

ASK = (Message(role="user", content="q"),)


def test_all_start_with_equal_scores():
    assert Head("score", 3)(torch.randn(5, 3)).tolist() == [0.0] * 5
    assert Head("class_logits", 3, 2)(torch.randn(5, 3)).shape == (5, 2)


def test_a_value_is_read_before_the_token_and_a_judgement_after_it():
    """State k is the number k, and so is the output: tokens q a b stop are states 0 to 3, sites a, b and stop."""
    forest = plant([sequence("q", "ab")], {"q/ab": 1.0})[0]
    states = torch.arange(4.0)[:, None]
    for output, expected in (("value", [0, 1, 2]), ("score", [1, 2, 3])):
        head = Head(output, 1)
        torch.nn.init.ones_(head.linear.weight)
        assert head.at_sites(states, forest.sites).tolist() == expected


@pytest.mark.parametrize(("output", "width"), [("score", 2), ("class_logits", 0)])
def test_what_is_no_head_is_refused(output, width):
    with pytest.raises(ModelError):
        Head(output, 3, width)


@pytest.mark.parametrize("output", OUTPUTS)
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, output):
    head = Head(output, 4, 3 if output == "class_logits" else 1, facts={"classes": ["é", "b", "c"], "mean": 0.5})
    torch.nn.init.normal_(head.linear.weight)
    head.save(tmp_path)
    loaded = Head.load(tmp_path)
    states = torch.randn(6, 4)
    assert torch.equal(head(states), loaded(states))
    assert (loaded.output, loaded.facts) == (output, head.facts)


def test_a_folder_without_a_head_says_so(tmp_path: Path):
    with pytest.raises(ModelError, match=r"head\.safetensors"):
        Head.load(tmp_path)


def test_a_new_head_knows_what_the_data_say():
    labelled = [Labelled(id=label, messages=ASK, label=label) for label in "ba"]
    head = head_for("class_logits", 4, labelled)
    assert (head.linear.out_features, head.facts) == (2, {"classes": ["a", "b"]})
    step = Stepwise(id="s", messages=ASK, steps=("1, ", "2"), labels=(1.0, None))
    assert head_for("score", 4, [step]).facts == {"steps": "comma"}
    assert head_for("value", 4, []).facts == {}
    with pytest.raises(DataError, match="two"):
        head_for("class_logits", 4, labelled[:1])
