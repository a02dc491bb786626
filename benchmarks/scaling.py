"""What a whole on-policy step costs as the model, the lengths, the groups, the threads and the recomputed layers grow:
Lydian alone.

    python benchmarks/scaling.py

One setting varies at a time around a base case; each point has a process of its own, so that its peak memory is its
own. Beside it stands what the memory plan of `lydian check` foresees, with what Python and its libraries take. Models
are Llamas with random weights, from the size of the bundled one to that of SmolLM2-135M.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import harness
import summary
import workload

BASE = {"size": "28M", "prompt": 128, "new_tokens": 64, "group": 8, "problems": 8, "recomputed": 0}
SIZES = {  # hidden, inner, layers, heads, key heads, vocabulary
    "1M": (128, 384, 4, 4, 4, 320),
    "7M": (256, 704, 6, 4, 2, 8192),
    "28M": (384, 1024, 10, 6, 2, 32768),
    "135M": (576, 1536, 30, 9, 3, 49152),
}


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--prompts", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 128, 256], help="new tokens")
    parser.add_argument("--groups", type=int, nargs="+", default=[2, 4, 16], help="64 sequences whatever the group")
    parser.add_argument("--recomputed", type=int, nargs="+", default=[5, 9], help="layers, of the base's 10")
    parser.add_argument("--thread-counts", type=int, nargs="+", default=None, help="by default 1 and all")
    options = parser.parse_args()
    options.model = "random weights"
    base = dict(BASE)
    if options.quick:
        options.sizes, options.prompts, options.lengths, options.groups = ["1M"], [], [4], []
        options.thread_counts, options.recomputed, options.alternations = [1], [2], 2
        base |= {"size": "1M", "prompt": 16, "new_tokens": 8, "group": 4, "problems": 2}
    cases = [_case(options, axis, point) for axis, point in _points(options, base)]
    rows = [[case["axis"], case["case"], *_cells(case)] for case in cases]
    head = ("axis", "case", "s a step", "spread", "of which rollout", "tokens/s", "operations/s", "peak GiB", "planned")
    return summary.publish("scaling", options, {"cases": cases, "base": base}, summary.plain_table(head, rows))


def _points(options: argparse.Namespace, base: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    total = base["group"] * base["problems"]
    threads = options.thread_counts or sorted({1, options.threads})
    points = [("model", base | {"size": size}) for size in options.sizes]
    points += [("prompt", base | {"prompt": prompt}) for prompt in options.prompts]
    points += [("completion", base | {"new_tokens": length}) for length in options.lengths]
    points += [("group", base | {"group": group, "problems": max(1, total // group)}) for group in options.groups]
    points += [("recomputed", base | {"recomputed": layers}) for layers in options.recomputed]
    points += [("threads", base | {"threads": num}) for num in threads]
    return points


def _case(options: argparse.Namespace, axis: str, point: dict[str, Any]) -> dict[str, Any]:
    hidden, inner, layers, heads, key_heads, vocabulary = SIZES[point["size"]]
    architecture = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
    }
    shapes = workload.Shapes.of(architecture)
    config = harness.base_config(options) | {"architecture": architecture} | point
    system = harness.System(name="lydian", script="lydian_scaling.py")
    measured = harness.compare([system], config, alternations=options.alternations)
    sampled = point["problems"] * point["group"] * point["new_tokens"]
    flops = shapes.flops(point["problems"] * point["prompt"] + sampled, sampled, passes=4)
    rows = summary.summarise(measured, units=sampled, unit="tokens", flops=flops, gflops=1.0)
    parameters = sum(a * b for a, b in shapes.body) + shapes.head[0] * shapes.head[1]
    name = ", ".join(f"{key} {value}" for key, value in point.items())
    return {"axis": axis, "case": name, "parameters": parameters, "flops": flops, "systems": rows}


def _cells(case: dict[str, Any]) -> list[str]:
    row = case["systems"][0]
    if "median_seconds" not in row:
        return [row["status"], *[""] * 6]
    rollout = statistics.median(result["rollout_seconds"] for result in row["results"][1:])
    return [
        f"{row['median_seconds']:.3f}",
        f"{row['spread']:.0%}",
        f"{rollout:.3f}",
        f"{row['tokens_per_second']:.0f}",
        f"{case['flops'] / row['median_seconds'] / 1e9:.0f} G",
        f"{row['peak_bytes'] / 2**30:.2f}",
        f"{row['results'][0]['planned_bytes'] / 2**30:.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
