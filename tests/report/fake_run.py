"""Writes a run directory that looks like a real one: three stages after the base, sixty steps, hostile completions."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>",
    "a\u2028b\u2029c",
    "\u202eevil\u202c",
    "]]> &lt;b&gt; & \x00\x07 \ud83d",
)
STAGES = ("sft", "expert_iteration", "grpo")
OUTCOMES = ("correct", "wrong", "unparsed", "truncated", "failed")
SHARES = {
    "base": (0.213, 0.392, 0.32, 0.07, 0.005),
    "sft": (0.305, 0.52, 0.14, 0.035, 0.0),
    "expert_iteration": (0.36, 0.51, 0.105, 0.025, 0.0),
    "grpo": (0.512, 0.438, 0.04, 0.01, 0.0),
}
NUM_PROBLEMS = 600
NUM_STEPS = {"sft": 20, "expert_iteration": 16, "grpo": 24}


def write_fake_run(root: Path, *, seed: int = 7) -> Path:
    """A finished run with every file of the run directory that a report reads; equal seeds write equal files."""
    rng = random.Random(seed)
    root.mkdir(parents=True, exist_ok=True)
    _write_manifest(root)
    lines = [line for stage in STAGES for line in _metrics(stage, rng)]
    _write_lines(root / "metrics.jsonl", lines)
    for index, stage in enumerate(STAGES, start=1):
        for number in range(0 if stage == "sft" else 6):
            rows = [_sample(stage, problem, sample, rng) for problem in range(12) for sample in range(8)]
            _write_lines(root / f"rollouts/{index:02d}_{stage}/round_{number:06d}.jsonl", rows)
    previous: dict[str, str] | None = None
    for index, stage in enumerate(SHARES):
        outcomes = _outcomes(stage, previous, rng)
        _write_evaluation(root / f"evaluations/{index:02d}_{stage}.records.jsonl", outcomes, rng)
        previous = outcomes
    _write_lines(root / "events.jsonl", _events())
    _write_json(root / "summary.json", summary())
    return root


def summary() -> dict[str, Any]:
    """The summary of the fake run: shares as in SHARES, intervals of half-width 1.96 standard errors."""
    stages = []
    for stage, shares in SHARES.items():
        value = shares[0]
        half = 1.96 * math.sqrt(value * (1 - value) / NUM_PROBLEMS)
        previous = stages[-1]["accuracy"]["value"] if stages else None
        gain = None if previous is None else value - previous
        stages.append(
            {
                "stage": stage,
                "accuracy": {"value": value, "low": value - half, "high": value + half, "num": NUM_PROBLEMS},
                "format": {"value": 1 - shares[2] - shares[3], "low": 0.5, "high": 1.0, "num": NUM_PROBLEMS},
                "outcomes": dict(zip(OUTCOMES, shares, strict=True)),
                "mean_tokens": 31.2 + 9 * len(stages),
                "versus_previous": None
                if gain is None
                else {
                    "value": gain,
                    "low": gain - 0.031,
                    "high": gain + 0.031,
                    "p_value": 0.0004 if gain > 0.06 else 0.0013,
                },
                "seconds": 12.5 + len(stages),
            }
        )
    return {
        "recipe": "tiny_ladder",
        "seed": 7,
        "benchmark": "integer_chain_heldout",
        "num_problems": NUM_PROBLEMS,
        "wall_seconds": 214.6,
        "peak_memory_bytes": 1_395_864_371,
        "stages": stages,
    }


def _write_manifest(root: Path) -> None:
    digest = "sha256:3f8a1c0e5b7d92466ce0a1f4b0d2c7e8f9a3b5c6d7e8f90112233445566778899"
    _write_json(
        root / "run.json",
        {
            "name": "tiny_ladder",
            "seed": 7,
            "command": ["lydian", "run", "tiny_ladder", "--out", "runs/tiny_ladder"],
            "started": "2026-03-01T09:14:02+00:00",
            "finished": "2026-03-01T09:17:37+00:00",
            "versions": {"python": "3.11.7", "lydian": "0.1.0", "torch": "2.13.0", "transformers": "5.24.0"},
            "hardware": {"cpu": "AMD EPYC 7763", "cores": 2, "memory_bytes": 8 * 2**30, "accelerator": None},
            "model": {"source": "tiny", "digest": digest, "licence": "Apache-2.0"},
            "data": [
                {
                    "name": "train",
                    "path": "generated:integer_chain",
                    "digest": digest,
                    "num": 4000,
                    "licence": "CC0-1.0",
                },
                {"name": "heldout", "path": "generated:integer_chain", "digest": digest, "num": 600, "licence": None},
            ],
            "recipe_digest": digest,
        },
    )
    stages = [{"name": stage, "algorithm": stage, "steps": NUM_STEPS[stage], "learning_rate": 3e-4} for stage in STAGES]
    _write_json(
        root / "recipe.json",
        {
            "name": "tiny_ladder",
            "seed": 2**63 - 1,
            "model": {"source": "tiny", "lora": None},
            "sampling": {"temperature": 1.0, "max_tokens": 96, "stop": []},
            "stages": stages,
        },
    )


def _metrics(stage: str, rng: random.Random) -> list[dict[str, Any]]:
    num = NUM_STEPS[stage]
    lines = []
    for step in range(1, num + 1):
        done = step / num
        noise = rng.gauss(0, 1)
        metrics: dict[str, float | None] = {
            "loss": 1.9 * math.exp(-2 * done) + 0.05 * noise + 0.3 if stage != "grpo" else 0.004 * noise,
            "learning_rate": 3e-4 * min(1.0, 4 * done),
            "gradient_norm": 0.9 + 0.25 * abs(noise) + (2.4 if step == 9 else 0),
        }
        if stage != "sft":
            reward = 0.32 + 0.22 * done + 0.03 * noise
            metrics |= {
                "reward": reward,
                "accuracy": reward - 0.04,
                "mean_tokens": 44 + 12 * done + noise,
                "entropy": 0.9 - 0.4 * done + 0.02 * noise,
                "kept": float(round(60 + 20 * done)),
                "truncated": 0.03,
            }
        if stage == "expert_iteration":
            metrics |= {f"retention_level_{level}": max(0.0, 0.95 - 0.2 * level + 0.1 * done) for level in (1, 2, 3)}
        if stage == "grpo":
            metrics |= {
                "clipped_low": 0.004 + 0.002 * abs(noise),
                "clipped_high": 0.012 + 0.01 * done + 0.002 * noise,
                "kl_k1": 0.01 * done + 0.002 * noise,
                "kl_k3": 0.012 * done + 0.0004 * abs(noise),
                "ratio": 1.0,
                "no_signal_groups": None if step in (10, 11, 12) else 0.25 - 0.1 * done,
                "behaviour_gap": 2e-6 * abs(noise),
            }
        lines.append({"stage": stage, "round": (step - 1) // 4, "step": step, "seconds": 1.3, "metrics": metrics})
    return lines


def _sample(stage: str, problem: int, sample: int, rng: random.Random) -> dict[str, Any]:
    a, b, c = (rng.randint(2, 97) for _ in range(3))
    outcome = rng.choices(OUTCOMES, SHARES[stage])[0]
    answer = a * b - c + (0 if outcome == "correct" else rng.randint(1, 9))
    pieces = [
        f"{a}",
        " *",
        f" {b}",
        " =",
        f" {a * b}",
        ";",
        "\n",
        f"{a * b}",
        " -",
        f" {c}",
        " =",
        f" {answer}",
        "\n",
        "####",
        f" {answer}",
        "<eos>",
    ]
    if problem == 0 and sample < len(HOSTILE):
        pieces[6:6] = [HOSTILE[sample], "�", "\\xe2\\x82"]
    if outcome == "truncated":
        pieces = (pieces[:-2] * 6)[:96]
    advantage = None if outcome == "failed" else (1.31 if outcome == "correct" else -0.76) * (0.5 + rng.random())
    return {
        "problem_id": f"chain-{problem:04d}",
        "sample": sample,
        "prompt": f"Compute {a} * {b} - {c}.\nWrite each step, then the answer after ####.\n",
        "ids": [rng.randrange(512) for _ in pieces],
        "pieces": pieces,
        "logprobs": [-rng.expovariate(1.4) for _ in pieces],
        "entropy": [rng.expovariate(1.2) for _ in pieces],
        "advantage": advantage,
        "is_trained": outcome != "failed" and advantage is not None,
        "score": None if outcome == "failed" else float(outcome == "correct"),
        "outcome": outcome,
        "extracted": str(answer) if outcome in ("correct", "wrong") else None,
        "parts": {"format": float(outcome in ("correct", "wrong")), "content": float(outcome == "correct")},
        "reason": {
            "correct": f"{answer} = {answer}",
            "wrong": f"{answer} ≠ {a * b - c}",
            "unparsed": "no number after ####",
            "truncated": "no answer within 96 tokens",
            "failed": "the verifier timed out",
        }[outcome],
        "finish": "length" if outcome == "truncated" else "stop",
        "version": 3,
    }


def _outcomes(stage: str, previous: dict[str, str] | None, rng: random.Random) -> dict[str, str]:
    """An outcome a problem; three problems in four keep the one they had."""
    fresh = {f"held-{k:04d}": rng.choices(OUTCOMES, SHARES[stage])[0] for k in range(NUM_PROBLEMS)}
    return {key: previous[key] if previous and rng.random() < 0.75 else value for key, value in fresh.items()}


def _write_evaluation(path: Path, outcomes: dict[str, str], rng: random.Random) -> None:
    rows = []
    for number, (problem_id, outcome) in enumerate(outcomes.items()):
        answer = rng.randint(10, 999)
        text = f"{answer + 7} - 7 = {answer}\n#### {answer}" if outcome in ("correct", "wrong") else "7 + 7 + 7 + "
        rows.append(
            {
                "problem_id": problem_id,
                "sample": 0,
                "text": text + HOSTILE[number % len(HOSTILE)] * (number % 9 == 0),
                "extracted": str(answer) if outcome in ("correct", "wrong") else None,
                "outcome": outcome,
                "score": None if outcome == "failed" else float(outcome == "correct"),
                "parts": {},
                "reason": "",
                "num_tokens": 40,
                "finish": "stop",
                "metadata": {"level": 1 + number % 4},
            }
        )
    _write_lines(path, rows)


def _events() -> list[dict[str, Any]]:
    return [
        {"time": "2026-03-01T09:14:03+00:00", "stage": "base", "kind": "start", "message": "evaluating 600 problems"},
        {
            "time": "2026-03-01T09:15:20+00:00",
            "stage": "sft",
            "kind": "warning",
            "message": f"3 rows skipped {HOSTILE[1]}",
        },
        {"time": "2026-03-01T09:16:41+00:00", "stage": "grpo", "kind": "resume", "message": "resumed at step 12"},
    ]


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
