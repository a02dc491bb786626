"""Group-relative policy optimisation: Lydian's loop against TRL's GRPOTrainer, whole steps.

    python benchmarks/grpo.py --trl-python DIR/bin/python --model smollm2-135m --new-tokens 64 128 256

A step samples `--group` completions of each of `--problems` prompts with the current weights, rewards and updates, and
brings the new weights to the sampler. Completions have a fixed length (nothing stops them); the reward is the parity of
the text's bytes, so that groups have a signal. `tokens` are those that were sampled.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import summary
import training
import workload


def main() -> int:
    parser = training.parser(__doc__, learning_rate=1e-6, batch=0)
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, nargs="+", default=[64])
    parser.set_defaults(trl_batch=16)
    options = parser.parse_args()
    if options.quick:
        options.model, options.problems, options.group, options.new_tokens = "tiny", 2, 4, [8]
        options.trl_batch, options.alternations = 4, 2
    prompts = workload.prompts(options.model, options.problems * (options.alternations + 1))
    shapes = workload.shapes(options.model)
    peak = summary.roofline(options, shapes)
    cases, checks = [], []
    for new_tokens in options.new_tokens:
        case, found = _case(options, prompts, shapes, peak, new_tokens)
        cases.append(case)
        checks += found
    report = {
        "texts": workload.source(options.model),
        "prompt_tokens": [len(p["ids"]) for p in prompts],
        "roofline_gflops": peak,
        "cases": cases,
        "equality": checks,
    }
    return summary.publish("grpo", options, report, summary.table(cases, "tokens"))


def _case(
    options: argparse.Namespace,
    prompts: list[dict[str, Any]],
    shapes: workload.Shapes,
    peak: dict[str, dict[str, float]],
    new_tokens: int,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    sampled = options.problems * options.group * new_tokens
    prompt_tokens = sum(len(p["ids"]) for p in prompts[options.problems :]) / options.alternations
    config = training.training_config(options, prompts) | {
        "problems": options.problems,
        "group": options.group,
        "new_tokens": new_tokens,
        "prompt": workload.PROMPTS[options.model],
    }
    case, checks = training.run(
        "grpo",
        options,
        config,
        case=f"GRPO, {options.problems} × {options.group} × {new_tokens} tokens",
        units=sampled,
        # Prompts computed once in sampling and once in training; each sampled token likewise.
        flops=shapes.flops(prompt_tokens + sampled, sampled, passes=1 + training.passes(options)),
        peak=peak,
    )
    return case, checks + [_length_check(row, new_tokens) for row in case["systems"] if row["results"]]


def _length_check(row: dict[str, Any], new_tokens: int) -> dict[str, Any]:
    """Both systems sampled what the comparison says: a completion that stopped early would be cheaper."""
    lengths = [result.get("mean_tokens", result.get("completions/mean_length", 0.0)) for result in row["results"]]
    gap = max(abs(length - new_tokens) for length in lengths)
    return {"what": f"{row['name']}: mean length and {new_tokens} tokens", "gap": gap, "limit": 0, "holds": gap == 0}


if __name__ == "__main__":
    sys.exit(main())
