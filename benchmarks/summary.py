"""From measurements to a report: medians, ratios, spread, the machine, JSON and a Markdown table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
from workload import Shapes

RESULTS = harness.HERE / "results"
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8")


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    present = set(facts.get("flags", "").split())
    return {
        "cpu": facts.get("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in FLAGS if flag in present],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average_at_start": os.getloadavg(),
        "torch": torch.__version__,
        "threads": options.threads,
        "allocator": {"name": options.allocator, "environment": harness.ALLOCATORS[options.allocator]},
    }


def roofline(options: argparse.Namespace, shapes: Shapes) -> dict[str, dict[str, float]]:
    """GFLOP/s of the model's matrix products by dtype and rows; bf16 only where the processor multiplies in it."""
    counts: dict[tuple[int, int], int] = {}
    for shape in (*shapes.body, shapes.head):
        counts[shape] = counts.get(shape, 0) + 1
    has_bf16 = options.dtype == "bfloat16" or {"avx512_bf16", "amx_bf16"} & set(machine(options)["flags"])
    system = harness.System(name="roofline", script="roofline.py")
    answer = harness.ask_once(
        system,
        harness.base_config(options) | ({"time": 0.02} if options.quick else {}),
        "step",
        shapes=list(counts),
        counts=list(counts.values()),
        rows=[64, 1024],
        dtypes=["float32", "bfloat16"] if has_bf16 else ["float32"],
    )
    return answer["result"]


def spread(values: Sequence[float]) -> float:
    """Interquartile range over median: how far a system is from itself.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    0.6666666666666666
    """
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def summarise(
    measured: Sequence[harness.Measured], *, units: float, unit: str, flops: float, gflops: float
) -> list[dict[str, Any]]:
    """One row a system; ratios are those of medians, of the others over the first.

    units   what one step works off, in `unit` (tokens, …)
    flops   operations of the linear layers that a step needs, each shared prefix computed once
    gflops  measured matrix products of this machine, 10⁹ a second
    """
    rows: list[dict[str, Any]] = []
    first = measured[0]
    for system in measured:
        row: dict[str, Any] = asdict(system)
        if system.status == "measured" and system.seconds:
            median = statistics.median(system.seconds)
            row |= {
                "median_seconds": median,
                "median_cpu_seconds": statistics.median(system.cpu_seconds),
                "spread": spread(system.seconds),
                f"{unit}_per_second": units / median,
                "roofline_fraction": flops / median / gflops / 1e9,
            }
            if first.status == "measured" and system is not first:
                row["ratio"] = median / statistics.median(first.seconds)
                pairs = sorted(b / a for a, b in zip(first.seconds, system.seconds, strict=False))
                row["ratio_of_alternations"] = [pairs[0], pairs[-1]]
                row["memory_ratio"] = system.peak_bytes / first.peak_bytes
        rows.append(row)
    return rows


def table(cases: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Markdown: one line a system and case."""
    head = ("case", "system", "s a step", "spread", f"{unit}/s", "CPU s", "peak GiB", "roofline", "time ratio")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for case in cases:
        for row in case["systems"]:
            lines.append(f"| {' | '.join(_cells(case['case'], row, unit))} |")
    return "\n".join(lines)


def _cells(case: str, row: Mapping[str, Any], unit: str) -> list[str]:
    if "median_seconds" not in row:
        return [case, row["name"], row["status"], *[""] * 6]
    return [
        case,
        row["name"],
        f"{row['median_seconds']:.3f}",
        f"{row['spread']:.0%}",
        f"{row[f'{unit}_per_second']:.0f}",
        f"{row['median_cpu_seconds']:.2f}",
        f"{row['peak_bytes'] / 2**30:.2f}",
        f"{row['roofline_fraction']:.1%}",
        f"{row['ratio']:.2f}" if "ratio" in row else "",
    ]


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown from cells."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def publish(name: str, options: argparse.Namespace, report: dict[str, Any], text: str) -> int:
    """Writes the JSON, prints the table; the exit status is 1 if a system failed or a check of equality did."""
    settings = {key: value for key, value in vars(options).items() if not key.endswith(("python", "output"))}
    report = {"benchmark": name, "machine": machine(options), "settings": settings} | report
    path: Path = options.output or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    facts = report["machine"]
    print(f"{facts['cpu']}, {facts['cores']} cores ({' '.join(facts['flags'])}), {facts['threads']} threads,")
    print(f"torch {facts['torch']}, allocator {facts['allocator']['name']}, {options.model}, {options.dtype}\n")
    print(f"{text}\n")
    systems = [row for case in report.get("cases", []) for row in case["systems"]]
    for reason in dict.fromkeys(f"{r['name']} {r['status']}: {r['reason']}" for r in systems if r["reason"]):
        print(reason)
    for check in report.get("equality", []):
        print(
            f"{'equal' if check['holds'] else 'NOT EQUAL'}: {check['what']}: {check['gap']:.2e} (≤ {check['limit']:g})"
        )
    print(f"\nwritten to {path}")
    failed = any(row["status"] == "failed" for row in systems)
    return int(failed or not all(check["holds"] for check in report.get("equality", [])))
