"""Lydian's loop, one round a step: sample, judge, advantages, update, publish, load; completions of a fixed length."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from channel import Commands, serve, use_threads
from lydian_learner import learner_of, loaded_model, stage_settings
from lydian_plain import gaps, logprobs
from reward import parity
from torch import Tensor, nn

from lydian.data.problems import Message, Problem
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Finish, Sampling
from lydian.data.verdict import Outcome, Verdict
from lydian.models.load import load_model
from lydian.rollout.local import LocalEngine
from lydian.text.template import make_template
from lydian.training.algorithms import ALGORITHMS
from lydian.training.collect import Rollouts
from lydian.training.learner import Learner
from lydian.training.loop import Position, Quiet, train
from lydian.training.stage import make_credit


@dataclass(frozen=True, slots=True)
class Parity:
    """A verifier whose score is `parity` of the completion's text."""

    name: str = "parity"
    fingerprint: str = "parity:0"

    def check(self, problem: Problem) -> None:
        """Any problem will do."""

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        score = parity(text)
        outcome = Outcome.CORRECT if score else Outcome.WRONG
        return Verdict(score=score, outcome=outcome, extracted=None, verifier=self.fingerprint)


def behaviour_gap(learner: Learner, items: list[Any]) -> float:
    """The largest difference between the engine's and the learner's logprobs of a sampled token, in nats."""
    measured = [s for s in learner.with_fixed_policies(items, num_steps=2) if isinstance(s, Sequence)]
    streams = ("proximal_logprobs", "behaviour_logprobs")
    pairs = (zip(*(s.streams[name] for name in streams), s.trained, strict=True) for s in measured)
    return max(abs(a - b) for tokens in pairs for a, b, used in tokens if used)


def load(config: dict[str, Any]) -> Commands:
    use_threads(config)
    prompts = json.loads(Path(config["workload"]).read_text(encoding="utf-8"))
    problems = [
        Problem(id=p["id"], messages=(Message(role="user", content=p["question"]),), answer=None) for p in prompts
    ]
    loaded = loaded_model(config)
    template = make_template("plain", loaded.tokenizer, prompt=config["prompt"])
    if [list(template.encode_prompt(p.messages)) for p in problems] != [p["ids"] for p in prompts]:
        raise ValueError("the template encodes the prompts otherwise than the workload did")
    settings = stage_settings(config, "grpo", num_samples=config["group"], self_test=False)
    learner = learner_of(config, loaded, "grpo", settings)
    # Nothing stops a completion. The engine has its own copy of the model, in the type that matrix products run in.
    engine = LocalEngine(
        load_model(config["model"], dtype=config["dtype"]).model, stop_tokens=frozenset(), decode=template.decode
    )

    def rollouts(index: int) -> Rollouts:
        size = config["problems"]
        return Rollouts(
            engine=engine,
            template=template,
            verifier=Parity(),
            problems=problems[index * size : (index + 1) * size],
            sampling=Sampling(max_tokens=config["new_tokens"]),
            num_samples=config["group"],
            problems_per_round=0,
            credit=make_credit(ALGORITHMS["grpo"], settings, max_tokens=config["new_tokens"]),
            seed=config["seed"],
        )

    def step(index: int) -> dict[str, Any]:
        journal = Quiet()
        train(
            learner,
            rollouts(index),
            replace(settings, rounds=index + 1),
            journal,
            seed=config["seed"],
            start=Position(round=index, step=index),
        )
        names = ("loss", "reward", "mean_tokens", "no_signal_groups", "behaviour_gap")
        return {name: journal.metrics[-1][name] for name in names if name in journal.metrics[-1]}

    def equality() -> dict[str, Any]:
        source = rollouts(0)
        items: list[Any] = source.assign(source.collect(0).items)

        def plain(model: nn.Module) -> Iterator[Tensor]:
            for item in items:
                now = logprobs(model, item)
                advantage = item.streams["advantage"][-1]
                yield -advantage * torch.exp(now - now.detach()).mean() / len(items)

        return gaps(learner, items, plain) | {"logprobs": {"gap": behaviour_gap(learner, items)}}

    return {"step": step, "equality": equality}


if __name__ == "__main__":
    serve(load)
