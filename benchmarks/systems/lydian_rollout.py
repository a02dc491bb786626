"""Lydian's local engine: samples completions of a fixed length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from channel import Commands, serve, use_threads

from lydian.data.trajectory import Completion, Sampling
from lydian.models.load import load_model
from lydian.rollout.engine import Request
from lydian.rollout.local import LocalEngine

FEW = 8
"""Prompts that are sampled once more, each by itself."""


def load(config: dict[str, Any]) -> Commands:
    use_threads(config)
    prompts = json.loads(Path(config["workload"]).read_text(encoding="utf-8"))
    # Nothing stops a completion: no stop token, no stop string.
    engine = LocalEngine(
        load_model(config["model"], dtype=config["dtype"]).model, stop_tokens=frozenset(), decode=lambda ids: ""
    )

    def generate(seed: int, prompts: list[dict[str, Any]] = prompts) -> list[list[Completion]]:
        sampling = Sampling(max_tokens=config["new_tokens"], seed=seed)
        return engine.generate(
            [
                Request(problem_id=p["id"], prompt=tuple(p["ids"]), num_samples=config["group"], sampling=sampling)
                for p in prompts
            ]
        )

    def step(index: int) -> dict[str, Any]:
        completions = generate(index)
        return {"tokens": sum(len(c.tokens) for samples in completions for c in samples)}

    def equality() -> dict[str, Any]:
        """The engine's logprobs against a plain forward pass over each whole sequence; and the share of completions
        that come out otherwise where a prompt is sampled by itself, of the first few prompts."""
        model, together = load_model(config["model"]).model, generate(0)
        gaps = [
            (plain_logprobs(model, prompt["ids"], c.tokens) - torch.tensor(c.logprobs)).abs()
            for prompt, samples in zip(prompts, together, strict=True)
            for c in samples
        ]
        gap = torch.cat(gaps)
        alone = [samples for prompt in prompts[:FEW] for samples in generate(0, [prompt])]
        is_other = [
            a.tokens != b.tokens
            for samples, others in zip(together, alone, strict=False)
            for a, b in zip(samples, others, strict=True)
        ]
        return {"max": gap.max().item(), "mean": gap.mean().item(), "otherwise": sum(is_other) / len(is_other)}

    return {"step": step, "equality": equality}


@torch.no_grad()
def plain_logprobs(model: torch.nn.Module, prompt: list[int], completion: tuple[int, ...]) -> torch.Tensor:
    """log π of each token of the completion, by transformers alone."""
    ids = torch.tensor([[*prompt, *completion]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None]).squeeze(-1)


if __name__ == "__main__":
    serve(load)
