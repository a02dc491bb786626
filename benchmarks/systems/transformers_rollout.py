"""transformers' `generate`: samples completions of a fixed length from the full distribution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from channel import Commands, serve, use_threads
from transformers import AutoModelForCausalLM


def load(config: dict[str, Any]) -> Commands:
    use_threads(config)
    prompts = [p["ids"] for p in json.loads(Path(config["workload"]).read_text(encoding="utf-8"))]
    model = AutoModelForCausalLM.from_pretrained(config["folder"], dtype=getattr(torch, config["dtype"])).eval()
    pad = model.generation_config.pad_token_id or 0
    model.generation_config.eos_token_id = None  # nothing stops a completion
    longest = max(map(len, prompts))
    tokens = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
    attended = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])

    def step(index: int) -> dict[str, Any]:
        torch.manual_seed(index)
        drawn = model.generate(
            tokens,
            attention_mask=attended,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=config["group"],
            max_new_tokens=config["new_tokens"],
            pad_token_id=pad,
        )
        return {"tokens": drawn.shape[0] * (drawn.shape[1] - longest)}

    return {"step": step}


if __name__ == "__main__":
    serve(load)
