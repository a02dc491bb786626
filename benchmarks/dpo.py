"""Preference learning: Lydian's learner against TRL's DPOTrainer, optimiser step by optimiser step.

    python benchmarks/dpo.py --trl-python DIR/bin/python

Both take the same pairs (as token ids) in the same order with β = 0.1, and compute the reference's logprobs in the
step. `tokens` are those of both sides of the pairs, prompts counted twice.
"""

from __future__ import annotations

import sys

import summary
import training
import workload

BETA = 0.1


def main() -> int:
    options = training.parser(__doc__, learning_rate=1e-6, batch=8).parse_args()
    if options.quick:
        options.model, options.batch, options.trl_batch, options.alternations = "tiny", 4, 4, 2
    pairs = workload.preferences(options.model, options.batch * (options.alternations + 1))
    shapes = workload.shapes(options.model)
    peak = summary.roofline(options, shapes)
    timed = pairs[options.batch :]
    sides = [side for pair in timed for side in pair.values()]
    tokens = sum(len(side["ids"]) for side in sides) / options.alternations
    sites = sum(sum(side["trained"]) for side in sides) / options.alternations
    shared = sum(training.shared_tokens([s["ids"] for s in p.values()]) for p in timed) / options.alternations
    case, checks = training.run(
        "dpo",
        options,
        training.training_config(options, pairs) | {"beta": BETA},
        case=f"DPO, {options.batch} pairs{f', LoRA {options.lora}' if options.lora else ''}",
        units=tokens,
        flops=shapes.flops(shared, sites, passes=training.passes(options) + 1),  # and the reference's forward pass
        peak=peak,
    )
    report = {
        "texts": workload.source(options.model),
        "tokens_a_step": tokens,
        "tokens_a_step_shared": shared,
        "roofline_gflops": peak,
        "cases": [case],
        "equality": checks,
    }
    return summary.publish("dpo", options, report, summary.table([case], "tokens"))


if __name__ == "__main__":
    sys.exit(main())
