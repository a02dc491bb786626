"""Supervised fine-tuning: Lydian's learner against TRL's SFTTrainer, optimiser step by optimiser step.

    python benchmarks/sft.py --trl-python DIR/bin/python [--lora 16] [--dtype bfloat16]

Both take the same conversations (as token ids) in the same order, `--batch` of them a step, with the same optimiser.
TRL runs padded and without checkpointing, its fastest setting on a CPU; `tokens` are those of the conversations.
"""

from __future__ import annotations

import sys

import summary
import training
import workload


def main() -> int:
    options = training.parser(__doc__, learning_rate=1e-5, batch=16).parse_args()
    if options.quick:
        options.model, options.batch, options.trl_batch, options.alternations = "tiny", 4, 4, 2
    rows = workload.conversations(options.model, options.batch * (options.alternations + 1))
    shapes = workload.shapes(options.model)
    peak = summary.roofline(options, shapes)
    timed = rows[options.batch :]
    tokens = sum(len(row["ids"]) for row in timed) / options.alternations
    sites = sum(sum(row["trained"]) for row in timed) / options.alternations
    case, checks = training.run(
        "sft",
        options,
        training.training_config(options, rows),
        case=f"SFT, {options.batch} conversations{f', LoRA {options.lora}' if options.lora else ''}",
        units=tokens,
        flops=shapes.flops(tokens, sites, passes=training.passes(options)),
        peak=peak,
    )
    report = {
        "texts": workload.source(options.model),
        "tokens_a_step": tokens,
        "trained_tokens_a_step": sites,
        "roofline_gflops": peak,
        "cases": [case],
        "equality": checks,
    }
    return summary.publish("sft", options, report, summary.table([case], "tokens"))


if __name__ == "__main__":
    sys.exit(main())
