"""Comparisons of training steps: what SFT, DPO and GRPO have in common."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

import harness
import summary
import workload

from lydian.training.learner import Batching

LIMITS = {
    "float32": {"loss": 1e-5, "gradient": 1e-5, "logprobs": 1e-3},
    "bfloat16": {"loss": 0.05, "gradient": 0.3, "logprobs": 1.0},
}
"""Largest gaps from the plain path in the same weights: relative for loss and gradient, nats for logprobs."""

CANCELLATION = {"grpo": 10.0}
"""Factor on the limits of loss and gradient: a group's advantages sum to zero, so that its terms cancel while what they
were rounded by stays."""


def parser(description: str | None, *, learning_rate: float, batch: int) -> argparse.ArgumentParser:
    """The options of training comparisons."""
    result = harness.parser(description)
    result.add_argument("--batch", type=int, default=batch, help="rows of one optimiser step")
    result.add_argument("--lora", type=int, default=0, metavar="RANK", help="train a LoRA adapter; 0 trains all")
    result.add_argument("--learning-rate", type=float, default=learning_rate)
    result.add_argument(
        "--batch-tokens", type=int, default=Batching().batch_tokens, help="of one of Lydian's passes: speed for memory"
    )
    result.add_argument("--trl-batch", type=int, default=8, help="rows of one of TRL's forward passes")
    result.add_argument("--trl-checkpointing", action="store_true", help="TRL's gradient checkpointing (slower)")
    return result


def training_config(options: argparse.Namespace, content: object) -> dict[str, Any]:
    """What both workers of a training comparison are told."""
    names = ("batch", "lora", "learning_rate", "batch_tokens", "trl_batch", "trl_checkpointing")
    return (
        harness.base_config(options)
        | {name: getattr(options, name) for name in names}
        | {"workload": workload.write(content), "folder": str(workload.folder(options.model))}
    )


def systems(name: str, options: argparse.Namespace) -> list[harness.System]:
    """Lydian and TRL."""
    return [
        harness.System(name="lydian", script=f"lydian_{name}.py"),
        harness.System(name="trl", script=f"trl_{name}.py", package="trl", python=options.trl_python),
    ]


def run(
    name: str,
    options: argparse.Namespace,
    config: Mapping[str, Any],
    *,
    case: str,
    units: float,
    flops: float,
    peak: dict[str, dict[str, float]],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One comparison: the case for the report, and the checks of equality."""
    pair = systems(name, options)
    measured = harness.compare(pair, config, alternations=options.alternations)
    rows = summary.summarise(measured, units=units, unit="tokens", flops=flops, gflops=peak[options.dtype]["1024"])
    found = harness.ask_once(pair[0], config, "equality")["result"]
    checks = [
        check(f"{case}: {what} and the plain path's", options.dtype, what, entry, factor=CANCELLATION.get(name, 1.0))
        for what, entry in found.items()
    ]
    return {"case": case, "systems": rows}, checks + _first_losses(measured, options.dtype, case)


def passes(options: argparse.Namespace) -> float:
    """Forward and backward, in forward passes: frozen weights need no gradient of their own."""
    return 2.0 if options.lora else 3.0


def shared_tokens(sequences: Sequence[Sequence[int]]) -> int:
    """Tokens of several sequences when a common prefix with the one before, in sorted order, counts once."""
    total, before = 0, list[int]()
    for sequence in sorted(list(s) for s in sequences):
        common = next((i for i, (a, b) in enumerate(zip(before, sequence, strict=False)) if a != b), len(before))
        total += len(sequence) - min(common, len(sequence))
        before = sequence
    return total


def check(label: str, dtype: str, what: str, entry: Mapping[str, float], *, factor: float = 1.0) -> dict[str, Any]:
    """Whether a gap is within its limit; `factor` widens those of loss and gradient."""
    limit = LIMITS[dtype][what] * (1.0 if what == "logprobs" else factor)
    return {"what": label, "limit": limit, "holds": entry["gap"] <= limit, **entry}


def _first_losses(measured: Sequence[harness.Measured], dtype: str, case: str) -> list[dict[str, Any]]:
    """Both systems' loss of the first step, on the same rows with the same weights; not for sampled rows."""
    first = [m.results[0].get("loss") for m in measured if m.status == "measured" and m.results]
    if len(first) < 2 or None in first or "grpo" in case.lower():
        return []
    gap = abs(first[0] - first[1]) / max(abs(first[1]), 1e-3)
    limit = 1e-3 if dtype == "float32" else 0.05  # TRL rounds what it logs
    return [{"what": f"{case}: first loss and TRL's", "gap": gap, "limit": limit, "holds": gap <= limit}]
