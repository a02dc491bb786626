"""vLLM on the CPU: samples completions of a fixed length, with the logprobs of what it sampled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from channel import Commands, serve, use_threads

MEMORY_SHARE = 0.4
"""Of the memory of the cores' NUMA node, which vLLM reserves at its start: ample for these models and lengths."""


def load(config: dict[str, Any]) -> Commands:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its time and memory are then this process's
    from vllm import LLM, SamplingParams

    use_threads(config)
    prompts = [{"prompt_token_ids": p["ids"]} for p in json.loads(Path(config["workload"]).read_text(encoding="utf-8"))]
    longest = max(len(p["prompt_token_ids"]) for p in prompts) + config["new_tokens"]
    llm = LLM(
        model=config["folder"],
        dtype=config["dtype"],
        enforce_eager=True,
        max_model_len=longest + 1,
        max_num_seqs=max(256, len(prompts) * config["group"]),
        gpu_memory_utilization=MEMORY_SHARE,
    )

    def step(index: int) -> dict[str, Any]:
        sampling = SamplingParams(
            n=config["group"],
            temperature=1.0,
            max_tokens=config["new_tokens"],
            ignore_eos=True,
            logprobs=0,
            seed=index,
            detokenize=False,
        )
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return {"tokens": sum(len(sample.token_ids) for output in outputs for sample in output.outputs)}

    return {"step": step}


if __name__ == "__main__":
    serve(load)
