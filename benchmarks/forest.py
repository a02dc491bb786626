"""What sharing prefixes gains: forward and backward in three layouts as prompts, completions and groups vary.

    python benchmarks/forest.py --model smollm2-135m --prompt 64 128 256 --completion 64 --group 2 8

shared computes a group's prompt once, packed computes every sequence whole in shared rows, single pads each to a row
of its own. Beside the measured gain of `shared` over `packed` stands what counts predict: tokens, and operations of the
linear layers (the output matrix costs the same in all layouts). `reached` is measured gain over predicted by tokens.
Attention is in neither prediction.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import harness
import summary
import training
import workload

LAYOUTS = ("shared", "packed", "single")


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--prompt", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--completion", type=int, nargs="+", default=[64])
    parser.add_argument("--group", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--sequences", type=int, default=16, help="in all groups together")
    parser.add_argument("--row-tokens", type=int, default=0, help="budget of a row; 0 leaves the library's")
    parser.add_argument("--batch-tokens", type=int, default=0, help="budget of a pass; 0 leaves the library's")
    options = parser.parse_args()
    if options.quick:
        options.model, options.prompt, options.completion, options.group = "tiny", [32], [16], [4]
        options.sequences, options.alternations = 8, 3
    shapes = workload.shapes(options.model)
    peak = summary.roofline(options, shapes)
    cases, equality = [], []
    for group in options.group:
        for prompt in options.prompt:
            for completion in options.completion:
                case, checks = _case(options, shapes, peak, prompt, completion, group)
                cases.append(case)
                equality += checks
    report = {"roofline_gflops": peak, "cases": cases, "equality": equality}
    gains = summary.plain_table(
        ("case", "shared over packed", "by tokens", "by operations", "reached", "shared over single"),
        [[case["case"], *_cells(case)] for case in cases],
    )
    return summary.publish("forest", options, report, f"{gains}\n\n{summary.table(cases, 'tokens')}")


def _case(
    options: argparse.Namespace,
    shapes: workload.Shapes,
    peak: dict[str, dict[str, float]],
    prompt: int,
    completion: int,
    group: int,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    groups = max(1, options.sequences // group)
    sequences = groups * group
    config = harness.base_config(options) | {
        "prompt": prompt,
        "completion": completion,
        "group": group,
        "groups": groups,
        "row_tokens": options.row_tokens,
        "batch_tokens": options.batch_tokens,
    }
    systems = [harness.System(name=x, script="lydian_forest.py", extra={"layout": x}) for x in LAYOUTS]
    measured = harness.compare(systems, config, alternations=options.alternations)
    shared, whole = groups * (prompt + group * completion), sequences * (prompt + completion)
    sites = sequences * completion
    rows = summary.summarise(
        measured,
        units=whole,
        unit="tokens",
        flops=shapes.flops(shared, sites, passes=3),
        gflops=peak[options.dtype]["1024"],
    )
    name = f"P = {prompt}, C = {completion}, G = {group}"
    gain = {
        "by_tokens": whole / shared,
        "by_operations": shapes.flops(whole, sites) / shapes.flops(shared, sites),
        "planted_tokens": {m.name: m.results[0]["planted_tokens"] for m in measured if m.results},
    }
    if all(m.seconds for m in measured):
        seconds = {m.name: statistics.median(m.seconds) for m in measured}
        gain["measured"] = seconds["packed"] / seconds["shared"]
        gain["measured_over_single"] = seconds["single"] / seconds["shared"]
        gain["reached"] = gain["measured"] / gain["by_tokens"]
    checks = [
        training.check(f"{name}: {what}, {system.name} and the plain path's", options.dtype, what, entry)
        for system in systems[:2]
        for what, entry in harness.ask_once(system, config, "equality")["result"].items()
    ]
    return {"case": name, "gain": gain, "systems": rows}, checks


def _cells(case: dict[str, Any]) -> list[str]:
    gain = case["gain"]
    if "measured" not in gain:
        return ["failed", f"{gain['by_tokens']:.2f}", f"{gain['by_operations']:.2f}", "", ""]
    return [
        f"{gain['measured']:.2f}",
        f"{gain['by_tokens']:.2f}",
        f"{gain['by_operations']:.2f}",
        f"{gain['reached']:.0%}",
        f"{gain['measured_over_single']:.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
