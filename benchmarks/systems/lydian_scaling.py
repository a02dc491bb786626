"""One on-policy step on a model of a given size: sample groups, update, publish, load; its two halves timed apart, and
the memory that was planned for it."""

from __future__ import annotations

import resource
import time
from typing import Any

import torch
from channel import Commands, serve, use_threads
from transformers import LlamaConfig, LlamaForCausalLM

from lydian.data.sequence import Sequence
from lydian.data.trajectory import Sampling
from lydian.models.memory import (
    Held,
    engine_plan,
    passes_plan,
    peak_bytes,
    published_bytes,
    shape_of,
    trained_plan,
)
from lydian.models.policy import Policy
from lydian.objectives.policy_gradient import clip
from lydian.rollout.engine import Request
from lydian.rollout.local import LocalEngine
from lydian.training.learner import Batching, Learner
from lydian.training.optim import OptimiserSettings


def make_model(config: dict[str, Any]) -> LlamaForCausalLM:
    """A Llama with random weights of the seed."""
    torch.manual_seed(config["seed"])
    return LlamaForCausalLM(LlamaConfig(**config["architecture"])).eval()


def planned_bytes(config: dict[str, Any], model: LlamaForCausalLM, copy: LlamaForCausalLM) -> int:
    """What models, optimiser, passes and engine hold at most, freed memory being kept."""
    shape, batching = shape_of(model.config), Batching()
    tree = config["prompt"] + config["group"] * config["new_tokens"]
    tokens = min(config["problems"] * tree, batching.batch_tokens)
    passes = passes_plan(
        shape,
        tokens=tokens,
        num_parameters=sum(p.numel() for p in model.parameters()),
        is_bfloat16=config["dtype"] == "bfloat16",
        is_frozen=False,
        num_recomputed=config["recomputed"],
    )
    rows, capacity = config["problems"] * config["group"], config["prompt"] + config["new_tokens"]
    plan = [
        *trained_plan(model, "policy"),
        *engine_plan(
            copy,
            rows=rows,
            capacity=capacity,
            chunk=min(2048, config["problems"] * config["prompt"]),
            num_prompts=config["problems"],
            prompt_tokens=config["prompt"],
        ),
        *passes,
        Held(what="a published version", of="policy", num_bytes=published_bytes(model), during="sampling"),
    ]
    return peak_bytes(plan, is_kept=True)


def load(config: dict[str, Any]) -> Commands:
    use_threads(config)
    libraries = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    model = make_model(config)
    policy = Policy(model, compute_dtype=getattr(torch, config["dtype"]))
    policy.recompute(config["recomputed"])
    learner = Learner(
        policy,
        objective=clip,
        normaliser="sequence_mean",
        optimiser=OptimiserSettings(learning_rate=1e-6),
    )
    copy = make_model(config).to(getattr(torch, config["dtype"]))
    planned = libraries + planned_bytes(config, model, copy)
    engine = LocalEngine(copy, stop_tokens=frozenset(), decode=lambda ids: "")
    generator = torch.Generator().manual_seed(config["seed"])
    prompts = torch.randint(
        config["architecture"]["vocab_size"], (config["problems"], config["prompt"]), generator=generator
    ).tolist()

    def sample(index: int) -> list[Sequence]:
        sampling = Sampling(max_tokens=config["new_tokens"], seed=index)
        completions = engine.generate(
            [
                Request(problem_id=f"p{i}", prompt=tuple(prompt), num_samples=config["group"], sampling=sampling)
                for i, prompt in enumerate(prompts)
            ]
        )
        return [
            _sequence(f"p{i}", k, tuple(prompts[i]), completion)
            for i, samples in enumerate(completions)
            for k, completion in enumerate(samples)
        ]

    def step(index: int) -> dict[str, Any]:
        began = time.perf_counter()
        sequences = sample(index)
        sampled = time.perf_counter()
        learner.accumulate(sequences)
        learner.step(0.0)
        engine.load(learner.publish())
        return {
            "rollout_seconds": sampled - began,
            "training_seconds": time.perf_counter() - sampled,
            "planned_bytes": planned,
        }

    return {"step": step}


def _sequence(group: str, index: int, prompt: tuple[int, ...], completion: Any) -> Sequence:
    nothing = (0.0,) * len(prompt)
    advantage = 1.0 if index % 2 else -1.0  # any signal will do
    return Sequence(
        id=f"{group}/{index}",
        group=group,
        tokens=prompt + completion.tokens,
        trained=(False,) * len(prompt) + (True,) * len(completion.tokens),
        streams={
            "behaviour_logprobs": nothing + completion.logprobs,
            "advantage": nothing + (advantage,) * len(completion.tokens),
        },
    )


if __name__ == "__main__":
    serve(load)
