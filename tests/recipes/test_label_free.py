"""A run whose reward is the vote of a group: it trains by name, and nowhere is the vote called accuracy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from lydian.recipes.check import check_recipe
from lydian.recipes.load import load_recipe
from lydian.recipes.run_dir import read_json
from lydian.report.record import read_run
from tests.recipes.killing import run

RECIPE = r"""
name = "votes"
model = {source = "MODEL", dtype = "float32"}
template = {kind = "plain", prompt = "{question}\n"}
data.train = {generator = "arithmetic", num = 4, split = "train"}
data.test = {generator = "arithmetic", num = 2, split = "heldout"}
benchmark = {data = "test", verifier = {name = "numeric"}, sampling = {max_tokens = 4}}

[[stages]]
algorithm = "grpo"
data = "train"
rounds = 2
num_samples = 6
problems_per_round = 4
batch_size = 24
sampling = {max_tokens = 4}
verifier = {name = "consensus", inner = {name = "regex"}, probe = '\A\s*(\S)'}
"""


def test_a_vote_trains_by_name_and_is_marked(untrained: Path, tmp_path: Path) -> None:
    """Random weights: completions vote over their first letter, so that some groups have a majority."""
    out = tmp_path / "run"
    run(RECIPE.replace("MODEL", str(untrained)), out)
    (event,) = [event for event in read_run(out)["events"] if event["kind"] == "label-free"]
    assert "no accuracy" in event["message"]
    for line in (out / "metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)["metrics"]
        assert "agreement" in metrics and "accuracy" not in metrics and "heldout_accuracy" in metrics
    samples = read_run(out)["samples"]["rows"]
    assert {row["parts"]["label_free"] for row in samples} == {1.0}
    assert {row["outcome"] for row in samples} & {"correct", "failed"}
    assert [row["label_free"] for row in read_json(out / "summary.json")["stages"]] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["consensus", "self_confidence"])
def test_the_dry_run_binds_and_runs_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / "votes.toml"
    path.write_text(RECIPE.replace("MODEL", "tiny").replace('"consensus"', f'"{name}"'))
    assert check_recipe(load_recipe(path), Console(quiet=True)) == []
