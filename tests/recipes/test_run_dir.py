"""A run's folder: nothing half-written, nothing lost, one writer, and a resume that notices a changed recipe."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lydian.errors import RunError
from lydian.recipes import run_dir
from lydian.recipes.run_dir import RunDir, differences, finite, read_json, write_atomically

RECIPE: dict[str, Any] = {
    "name": "demo",
    "description": "text",
    "data": {"root": "data", "train": {"limit": 3}},
    "stages": [{"name": "sft", "rounds": 1}, {"name": "grpo", "rounds": 2}],
}


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def log(run: RunDir, stage: str, step: int) -> None:
    run.append_metrics(stage=stage, round=0, step=step, seconds=0.5, metrics={"loss": float(step)})


def full_disk(monkeypatch: pytest.MonkeyPatch, name: str, *, after: bytes = b"") -> None:
    """`os.<name>` fails as on a full disk; os.write may have written part of its bytes by then."""
    real_write = os.write

    def fail(descriptor: int, *arguments: object) -> int:
        if after:
            real_write(descriptor, after)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, name, fail)


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    assert finite({"a": [float("nan"), (float("inf"), 1.5)], "b": "nan"}) == {"a": [None, [None, 1.5]], "b": "nan"}
    with RunDir.create(tmp_path / "run", RECIPE) as run:
        run.append_metrics(stage="sft", round=0, step=1, seconds=0.1, metrics={"loss": float("nan")})
        run.write_json("x.json", {"value": float("-inf")})
        assert lines(run.path / "metrics.jsonl")[0]["metrics"] == {"loss": None}
        assert read_json(run.path / "x.json") == {"value": None}


def test_paths_number_the_stages(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run", RECIPE) as run:
        assert run.numbered("base") == "00_base" and run.numbered("grpo") == "02_grpo"
        assert run.model_path("sft") == run.path / "models" / "01_sft"
        assert run.evaluation_prefix("base") == run.path / "evaluations" / "00_base"
        assert run.rollouts_path("grpo", 3) == run.path / "rollouts" / "02_grpo" / "round_000003.jsonl"


def test_create_takes_absent_and_empty_folders_only(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with RunDir.create(tmp_path / "empty", RECIPE) as run:
        assert read_json(run.path / "recipe.json") == RECIPE
    with pytest.raises(RunError, match="lydian run --resume"):
        RunDir.create(tmp_path / "empty", RECIPE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(RunError, match=r"thesis\.tex"):
        RunDir.create(tmp_path / "full", RECIPE)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_resume_notices_a_changed_recipe_and_names_what_differs(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "run", RECIPE).close()
    changed = RECIPE | {"stages": [RECIPE["stages"][0], {"name": "grpo", "rounds": 5}]}
    with pytest.raises(RunError, match=r"stages\[1\]\.rounds: 2 → 5"):
        RunDir.resume(tmp_path / "run", changed)
    elsewhere = RECIPE | {"description": "other", "data": RECIPE["data"] | {"root": "/elsewhere"}}
    RunDir.resume(tmp_path / "run", elsewhere).close()
    with pytest.raises(RunError, match=r"recipe\.json"):
        RunDir.resume(tmp_path / "nothing", RECIPE)


def test_a_recipe_with_tuples_resumes_as_json_gives_it_back(tmp_path: Path) -> None:
    recipe = RECIPE | {"stop": ("a", "b")}
    RunDir.create(tmp_path / "run", recipe).close()
    RunDir.resume(tmp_path / "run", recipe).close()


def test_differences_name_what_came_and_went() -> None:
    assert differences({"a": 1, "b": {"c": [1, 2]}}, {"b": {"c": [1, 3]}, "d": None}) == [
        "a: 1 → absent",
        "b.c: [1, 2] → [1, 3]",
        "d: absent → None",
    ]


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    """The other process is refused while we hold the folder, and let in once we have closed it."""
    code = (
        "import sys; from pathlib import Path; from lydian.recipes.run_dir import RunDir\n"
        f"RunDir.resume(Path(sys.argv[1]), {RECIPE!r}).close()"
    )
    root = str(Path(__file__).parents[2])

    def other() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "run")]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": root}
        )

    with RunDir.create(tmp_path / "run", RECIPE):
        refused = other()
        assert refused.returncode != 0
        assert f"RunError: {tmp_path / 'run'}" in refused.stderr and f"process {os.getpid()}" in refused.stderr
    assert other().returncode == 0


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, "old")
    full_disk(monkeypatch, "fsync")
    with pytest.raises(RunError, match=r"a full disk.*MiB free.*Nothing that was written before is lost"):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_line_that_did_not_fit_is_cut_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDir.create(tmp_path / "run", RECIPE) as run:
        log(run, "sft", 1)
        with monkeypatch.context() as patched:
            full_disk(patched, "write", after=b'{"stage": "sf')
            with pytest.raises(RunError, match="a full disk"):
                log(run, "sft", 2)
        log(run, "sft", 3)
        assert [row["step"] for row in lines(run.path / "metrics.jsonl")] == [1, 3]


def test_a_short_write_counts_as_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDir.create(tmp_path / "run", RECIPE) as run:
        log(run, "sft", 1)
        real_write = os.write
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda descriptor, content: real_write(descriptor, content[:5]))
            with pytest.raises(RunError, match="a full disk"):
                log(run, "sft", 2)
        assert [row["step"] for row in lines(run.path / "metrics.jsonl")] == [1]


def test_each_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunDir.create(tmp_path / "run", RECIPE) as run:
        written: list[bytes] = []
        real_write = os.write

        def note(descriptor: int, content: bytes) -> int:
            written.append(content)
            return real_write(descriptor, content)

        monkeypatch.setattr(run_dir.os, "write", note)
        run.append_event(stage="sft", kind="note", message="two\nlines")
        assert len(written) == 1 and written[0].count(b"\n") == 1 and written[0].endswith(b"\n")


def test_trim_moves_what_lies_beyond_the_checkpoint(tmp_path: Path) -> None:
    """The checkpoint is step 2 of grpo: sft's steps and grpo's first two stay, grpo's third and a torn line go."""
    with RunDir.create(tmp_path / "run", RECIPE) as run:
        for stage, step in (("sft", 1), ("sft", 9), ("grpo", 1), ("grpo", 2), ("grpo", 3)):
            log(run, stage, step)
        metrics = run.path / "metrics.jsonl"
        with metrics.open("a", encoding="utf-8") as file:
            file.write('{"stage": "grpo", "st')
        assert run.trim_metrics(stage="grpo", step=2) == 2
        assert [(row["stage"], row["step"]) for row in lines(metrics)] == [
            ("sft", 1), ("sft", 9), ("grpo", 1), ("grpo", 2),
        ]  # fmt: skip
        orphans = (run.path / "metrics.orphan.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(orphans[0])["step"] == 3 and orphans[1] == '{"stage": "grpo", "st'
        assert run.trim_metrics(stage="grpo", step=2) == 0
        assert run.trim_metrics(stage="base", step=0) == 4 and lines(metrics) == []


def test_trim_without_metrics_has_nothing_to_do(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run", RECIPE) as run:
        assert run.trim_metrics(stage="sft", step=0) == 0


def test_trim_refuses_a_line_that_it_cannot_place(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run", RECIPE) as run:
        (run.path / "metrics.jsonl").write_text('{"stage": "dpo", "step": 1}\n', encoding="utf-8")
        with pytest.raises(RunError, match="one of the run's stages"):
            run.trim_metrics(stage="sft", step=0)


def test_rollouts_are_never_changed(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run", RECIPE) as run:
        rows = [{"problem_id": "a", "logprobs": (-0.5, float("nan"))}]
        path = run.write_rollouts(stage="grpo", round=3, rows=rows)
        assert lines(path) == [{"problem_id": "a", "logprobs": [-0.5, None]}]
        stamp = path.stat().st_mtime_ns
        run.write_rollouts(stage="grpo", round=3, rows=rows)
        assert path.stat().st_mtime_ns == stamp
        run.write_rollouts(stage="grpo", round=3, rows=[{"problem_id": "b"}])
        assert lines(path) == [{"problem_id": "b"}]
        assert lines(path.with_name("orphan_round_000003.jsonl"))[0]["problem_id"] == "a"


def test_the_manifest_keeps_when_the_run_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, Any] = {"name": "demo", "seed": 0, "command": ["lydian", "run"], "recipe_digest": "d"}
    facts |= {"model": {"source": "tiny", "digest": "x", "licence": None}, "data": []}
    with RunDir.create(tmp_path / "run", RECIPE) as run:
        monkeypatch.setattr(run_dir, "now", lambda: "first")
        run.write_manifest(**facts)
        monkeypatch.setattr(run_dir, "now", lambda: "second")
        run.write_manifest(**facts)
        manifest = read_json(run.path / "run.json")
        assert (manifest["started"], manifest["finished"]) == ("first", None)
        assert set(manifest) == {
            "name", "seed", "command", "started", "finished", "versions", "hardware", "model", "data", "recipe_digest",
        }  # fmt: skip
        assert set(manifest["hardware"]) == {"cpu", "cores", "memory_bytes", "accelerator"}
        assert manifest["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
        run.mark_finished()
        assert read_json(run.path / "run.json")["finished"] == "second"


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=r"run\.json"):
        read_json(tmp_path / "run.json")


def test_a_run_killed_while_it_was_created_can_be_begun_again(tmp_path: Path) -> None:
    (tmp_path / ".recipe.json.tmp").write_text('{"na')
    (tmp_path / "lock").touch()
    RunDir.create(tmp_path, {"name": "demo", "stages": []}).close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lock", "recipe.json"]
