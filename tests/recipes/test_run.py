"""A run from end to end on random weights: what it leaves behind, and that no interruption changes it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lydian.errors import RunError
from lydian.evaluation.records import EvalReport
from lydian.models.load import load_model
from lydian.models.weights import tensors_digest
from lydian.recipes import run as run_module
from lydian.recipes.run_dir import read_json
from lydian.training.loop import Position, train
from tests.recipes.killing import RECIPE, SFT, STAGES, Kill, run, run_until_killed

RUN_DIR = "lydian.recipes.run_dir:RunDir"


@pytest.fixture(scope="module")
def recipe(untrained: Path) -> str:
    return (RECIPE + STAGES).replace("MODEL", str(untrained))


@pytest.fixture(scope="module")
def short(untrained: Path) -> str:
    """The recipe with its first stage alone."""
    return (RECIPE + SFT).replace("MODEL", str(untrained))


@pytest.fixture(scope="module")
def whole(recipe: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run(recipe, out)
    return out


@pytest.fixture(scope="module")
def whole_short(short: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole_short") / "run"
    run(short, out)
    return out


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file without what a clock says."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def summary_of(out: Path) -> dict[str, Any]:
    summary = read_json(out / "summary.json")
    stages = [{key: value for key, value in row.items() if key != "seconds"} for row in summary["stages"]]
    return {key: summary[key] for key in ("recipe", "seed", "benchmark", "num_problems")} | {"stages": stages}


def contents(folder: Path, pattern: str) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob(pattern)) if p.is_file()}


def assert_same_run(out: Path, reference: Path) -> None:
    """Bitwise: weights after each stage, every metric of every step, every sample, verdict and evaluation."""
    stages = sorted(folder.name for folder in (reference / "models").iterdir())
    assert sorted(folder.name for folder in (out / "models").glob("[0-9]*")) == stages
    ours, theirs = (contents(place, "models/[0-9]*/**/*.safetensors") for place in (out, reference))
    assert ours.keys() == theirs.keys()
    assert [name for name in theirs if ours[name] != theirs[name]] == []
    assert rows_of(out / "metrics.jsonl") == rows_of(reference / "metrics.jsonl")
    for pattern in ("evaluations/**/*", "rollouts/*/*"):
        assert contents(out, pattern) == contents(reference, pattern)
    assert summary_of(out) == summary_of(reference)
    assert read_json(out / "run.json")["finished"]


# ── What a run leaves behind ────────────────────────────────────────────────────────────────────────────────────────


def test_the_run_did_what_the_recipe_says(whole: Path):
    """4 steps of SFT (16 / 4); at least 2 in the second round of expert iteration; GRPO 3 rounds of 2 epochs of 2
    minibatches; DPO 2 epochs of 2. Rewards differ within groups, and ratios leave 1 within a round: the tests of
    resuming below speak of a run in which all of this matters."""
    steps = {}
    for row in rows_of(whole / "metrics.jsonl"):
        steps.setdefault(row["stage"], []).append(row)
    assert {stage: len(rows) for stage, rows in steps.items()} | {"expert_iteration": 0} == {
        "sft": 4,
        "expert_iteration": 0,
        "grpo": 12,
        "dpo": 4,
    }
    assert sum(row["round"] == 1 for row in steps["expert_iteration"]) >= 2
    assert {row["round"] for row in steps["grpo"]} == {0, 1, 2}
    assert all(0 < row["metrics"]["reward"] < 1 for row in steps["grpo"])
    assert any(abs(row["metrics"]["ratio"] - 1) > 1e-4 for row in steps["grpo"])
    assert any(row["metrics"]["kl_reference"] > 1e-6 for row in steps["grpo"])
    assert steps["dpo"][-1]["metrics"]["margin"] > steps["dpo"][0]["metrics"]["margin"]


def test_summary_is_what_the_evaluations_say(whole: Path):
    """A row a stage, base first; each as its records say; the paired difference is that of the two accuracies."""
    rows = read_json(whole / "summary.json")["stages"]
    assert [row["stage"] for row in rows] == ["base", "sft", "expert_iteration", "grpo", "dpo"]
    for index, row in enumerate(rows):
        report = EvalReport.load(whole / "evaluations" / f"{index:02d}_{row['stage']}")
        correct = sum(record.is_correct for record in report.records)
        assert row["accuracy"]["value"] == pytest.approx(correct / 8)
        assert row["accuracy"]["num"] == len(report.records) == 8
        assert sum(row["outcomes"].values()) == pytest.approx(1.0)
        if index == 0:
            assert row["versus_previous"] is None
        else:
            change = row["accuracy"]["value"] - rows[index - 1]["accuracy"]["value"]
            assert row["versus_previous"]["value"] == pytest.approx(change)


def test_every_sample_is_on_disk_with_what_became_of_it(whole: Path):
    """GRPO: 3 rounds of 4 problems × 4 samples, all trained with an advantage. Expert iteration trains the correct ones
    it kept, at most 2 a problem, without one."""
    grpo = [row for p in sorted((whole / "rollouts" / "03_grpo").glob("*.jsonl")) for row in rows_of(p)]
    assert len(grpo) == 48 and all(row["is_trained"] and row["advantage"] is not None for row in grpo)
    assert {row["version"] for row in grpo} == {min(r["version"] for r in grpo) + k for k in range(3)}
    for path in (whole / "rollouts" / "02_expert_iteration").glob("*.jsonl"):
        rows = rows_of(path)
        counts = json.loads(path.with_suffix(".counts.json").read_text(encoding="utf-8"))
        for problem_id, count in counts.items():
            own = [row for row in rows if row["problem_id"] == problem_id]
            assert count == {
                "sampled": len(own),
                "correct": sum(row["outcome"] == "correct" for row in own),
                "kept": sum(row["is_trained"] for row in own),
            }
        kept = [row["problem_id"] for row in rows if row["is_trained"]]
        assert kept and max(map(kept.count, kept)) <= 2
        assert all(row["outcome"] == "correct" and row["advantage"] is None for row in rows if row["is_trained"])


def test_saved_models_are_the_evaluated_ones(whole: Path):
    """The digest in each evaluation is that of the model that transformers loads from the stage's folder."""
    for folder in (whole / "models").iterdir():
        report = EvalReport.load(whole / "evaluations" / folder.name)
        assert tensors_digest(dict(load_model(folder).model.named_parameters())) == report.weights_digest


# ── Resuming ────────────────────────────────────────────────────────────────────────────────────────────────────────

GRPO_STEP = Kill(owner=RUN_DIR, name="append_metrics", matching={"stage": "grpo", "round": 1}, nth=3)
SFT_STEP = Kill(owner=RUN_DIR, name="append_metrics", matching={"stage": "sft"}, nth=4)
PLACES: dict[str, list[Kill]] = {
    "evaluation of the base model": [Kill(owner="lydian.evaluation.evaluate", name="verify_all")],
    "before any checkpoint": [Kill(owner=RUN_DIR, name="append_metrics", matching={"stage": "sft"}, nth=2)],
    "in the middle of sft": [SFT_STEP],
    "between checkpoint and model": [Kill(owner="lydian.recipes.run", name="save_model")],
    "while the model is saved": [Kill(owner="lydian.models.save", name="write_model", is_after=True)],
    "between model and evaluation": [Kill(owner="lydian.recipes.run", name="save_model", is_after=True)],
    "during an evaluation": [Kill(owner="lydian.evaluation.evaluate", name="verify_all", nth=2)],
    "before an evaluation is saved": [Kill(owner="lydian.evaluation.records:EvalReport", name="save", nth=2)],
    "before the summary": [Kill(owner="lydian.recipes.judge:Judge", name="_append", nth=2)],
    "while sampling": [Kill(owner="lydian.training.collect", name="score", nth=2)],
    "in a round of expert iteration": [
        Kill(owner=RUN_DIR, name="append_metrics", matching={"stage": "expert_iteration", "round": 1}, nth=2)
    ],
    "after rollouts are written": [
        Kill(owner=RUN_DIR, name="write_rollouts", matching={"stage": "grpo", "round": 1}, is_after=True)
    ],
    "in a round of grpo": [GRPO_STEP],
    "while a checkpoint is written": [Kill(owner="torch", name="save", nth=6, is_after=True)],
    "after a checkpoint": [Kill(owner="lydian.recipes.run", name="save_checkpoint", nth=9, is_after=True)],
    "in the middle of dpo": [Kill(owner=RUN_DIR, name="append_metrics", matching={"stage": "dpo"}, nth=3)],
    "while resuming": [SFT_STEP, Kill(owner="lydian.recipes.run_dir", name="write_atomically", nth=2)],
    "before it is noted as finished": [Kill(owner=RUN_DIR, name="mark_finished")],
}


def killed_and_resumed(text: str, out: Path, kills: list[Kill]) -> None:
    for index, kill in enumerate(kills):
        run_until_killed(text, out, kill, resume=index > 0)
    run(text, out, resume=True)


def test_a_run_killed_twice_ends_bitwise_the_same(recipe: str, whole: Path, tmp_path: Path):
    """SIGKILL in the middle of SFT, then in the middle of a GRPO round, between two minibatches."""
    killed_and_resumed(recipe, tmp_path / "run", [SFT_STEP, GRPO_STEP])
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_killed_anywhere_a_run_ends_bitwise_the_same(place: str, recipe: str, whole: Path, tmp_path: Path):
    killed_and_resumed(recipe, tmp_path / "run", PLACES[place])
    assert_same_run(tmp_path / "run", whole)


def test_resuming_a_finished_run_changes_nothing_but_the_manifest(whole_short: Path, short: str, tmp_path: Path):
    out = tmp_path / "run"
    shutil.copytree(whole_short, out)
    assert run(short, out, resume=True) == read_json(whole_short / "summary.json")
    after, before = (
        {name: value for name, value in contents(place, "**/*").items() if name not in ("run.json", "lock")}
        for place in (out, whole_short)
    )
    assert after == before


def snapshot(out: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p.relative_to(out)): (p.read_bytes(), p.stat().st_mtime_ns) for p in out.rglob("*") if p.is_file()}


def test_a_changed_recipe_is_refused_by_name_and_nothing_is_touched(whole_short: Path, short: str, tmp_path: Path):
    out = tmp_path / "run"
    shutil.copytree(whole_short, out)
    before = snapshot(out)
    with pytest.raises(RunError, match=r"learning_rate: 0\.001 → 0\.002") as caught:
        run(short.replace("learning_rate = 1e-3", "learning_rate = 2e-3"), out, resume=True)
    assert "batch_size" not in str(caught.value)  # only what differs is named
    assert snapshot(out) == before


def test_an_unreadable_checkpoint_is_refused_and_nothing_is_lost(whole_short: Path, short: str, tmp_path: Path):
    """The message offers to delete it: the run then trains again, to the same end."""
    out = tmp_path / "run"
    shutil.copytree(whole_short, out)
    checkpoint = out / "checkpoints" / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    before = snapshot(out)
    with pytest.raises(RunError, match=r"checkpoint\.pt"):
        run(short, out, resume=True)
    assert {k: v for k, v in snapshot(out).items() if k != "lock"} == {k: v for k, v in before.items() if k != "lock"}
    checkpoint.unlink()
    run(short, out, resume=True)
    assert_same_run(out, whole_short)


DISK: dict[str, tuple[Any, str, int]] = {
    "a checkpoint": (torch, "save", 2),
    "a line of metrics": (os, "write", 3),
}
"""Functions that write, and which of their calls finds the disk full."""


@pytest.fixture
def run_on_full_disk(short: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, int], bool]:
    """Runs the short recipe until the n-th call of a function finds the disk full; False if it is never called so."""

    def run_it(owner: Any, name: str, nth: int) -> bool:
        function, num_calls = getattr(owner, name), 0

        def full(*args: Any, **kwargs: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls == nth:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return function(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            try:
                run(short, tmp_path / "run")
            except RunError as error:
                assert "--resume" in error.fix
                return True
        return False

    return run_it


@pytest.mark.parametrize("what", DISK)
def test_a_full_disk_is_said_and_the_run_goes_on_later(
    what: str, run_on_full_disk: Callable, whole_short: Path, short: str, tmp_path: Path
):
    assert run_on_full_disk(*DISK[what])
    run(short, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole_short)


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(2, 30, 3))
def test_wherever_the_disk_is_full(nth: int, run_on_full_disk: Callable, whole_short: Path, short: str, tmp_path: Path):
    """Every file that must be on disk before a run goes on is synced; one after the other fails (the first is the
    recipe itself, without which there is no run yet)."""
    if not run_on_full_disk(os, "fsync", nth):
        pytest.skip(f"the run syncs fewer than {nth} times")
    run(short, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", whole_short)


def test_a_run_in_less_memory_gives_the_same(
    short: str, whole_short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations of all layers but the last are recomputed: the same numbers, step by step, and the run says so. Freed
    memory goes back around sampling whenever the process holds more than before it loaded anything, after a step
    0.001 GiB more than that."""
    bounds = []

    def trained(*args: Any, most_held: float, most_in_training: float, **settings: Any) -> Position:
        bounds.append((most_held, most_in_training))
        return train(*args, most_held=most_held, most_in_training=most_in_training, **settings)

    monkeypatch.setattr(run_module, "train", trained)
    monkeypatch.setattr(run_module, "held_bytes", lambda: 7)
    run(short.replace("[model]\n", "[engine]\nmemory_gib = 0.1\n[model]\nmemory_gib = 0.001\n"), tmp_path / "run")
    weights = [contents(out, "models/**/*.safetensors") for out in (tmp_path / "run", whole_short)]
    assert weights[0] == weights[1] != {}
    assert bounds == [(7, 7 + int(0.001 * 2**30))]
    assert rows_of(tmp_path / "run" / "metrics.jsonl") == rows_of(whole_short / "metrics.jsonl")
    (told,) = (row for row in rows_of(tmp_path / "run" / "events.jsonl") if row["kind"] == "memory")
    assert "activations of 3 layers are recomputed" in told["message"]
    (told,) = (row for row in rows_of(whole_short / "events.jsonl") if row["kind"] == "memory")
    assert "recomputed" not in told["message"]


def test_rollouts_in_bfloat16_are_judged_in_float32(short: str, tmp_path: Path) -> None:
    """The base scores the same, answer by answer; rollouts and learner differ by what bf16 rounds, and by more than two
    ways of computing fp32 do."""
    grpo = """
[[stages]]
algorithm = "grpo"
data = "train"
self_test = false
rounds = 1
problems_per_round = 4
num_samples = 4
batch_size = 16
sampling = { temperature = 1.0, max_tokens = 16 }
optimiser = { learning_rate = 1e-3 }
"""
    gaps = []
    for dtype in ("float32", "bfloat16"):
        run(short.replace(SFT, "") + grpo + f'[engine]\ndtype = "{dtype}"\n', tmp_path / dtype)
        (row,) = rows_of(tmp_path / dtype / "metrics.jsonl")
        gaps.append(row["metrics"]["behaviour_gap"])
    assert gaps[0] < 1e-5 < 1e-4 < gaps[1] < 0.1
    (told,) = (row for row in rows_of(tmp_path / "bfloat16" / "events.jsonl") if row["kind"] == "precision")
    assert "computes in float32, attention over trees" in told["message"]
    assert "samples rollouts in bfloat16 and benchmarks in float32" in told["message"]
    bases = [EvalReport.load(tmp_path / dtype / "evaluations" / "00_base").records for dtype in ("float32", "bfloat16")]
    assert bases[0] == bases[1]
