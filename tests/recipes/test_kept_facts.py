"""What one step takes over from the last belongs to a run's state: BCO's shift, where a step holds one class only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.killing import RECIPE, Kill, run, run_until_killed
from tests.recipes.test_methods import OFTEN, SETS
from tests.recipes.test_run import assert_same_run, rows_of

# 16 thumbs, up and down by turns, in seeded steps of three: some steps hold one kind only.
BCO = f"""
[[stages]]
algorithm = "bco"
data = "thumbs"
epochs = 2
batch_size = 3
{OFTEN}"""


def steps_of_one_class(out: Path) -> list[int]:
    """Steps, from 1, whose replies are all desirable or all not: no sign cancels in the mean of signed rewards."""
    metrics = [row["metrics"] for row in rows_of(out / "metrics.jsonl")]
    return [
        step
        for step, found in enumerate(metrics, start=1)
        if found["reward"] and abs(found["signed_reward"]) == abs(found["reward"])
    ]


@pytest.mark.slow
def test_a_run_killed_in_a_step_that_takes_over_the_last_shift_ends_bitwise_the_same(untrained: Path, tmp_path: Path):
    """Such a step has no shift of its own: a resumed run knows it from the state of the step before, or not at all."""
    text = (RECIPE + SETS + BCO).replace("MODEL", str(untrained))
    whole, out = tmp_path / "whole" / "run", tmp_path / "killed" / "run"
    for place in (whole, out):
        place.parent.mkdir()
    run(text, whole)
    step = steps_of_one_class(whole)[0]
    owner = "lydian.recipes.run_dir:RunDir"
    run_until_killed(text, out, Kill(owner=owner, name="append_metrics", matching={"stage": "bco"}, nth=step))
    assert [row["step"] for row in rows_of(out / "metrics.jsonl")] == list(range(1, step))
    run(text, out, resume=True)
    assert_same_run(out, whole)
