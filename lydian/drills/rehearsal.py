"""A stage in miniature: the bundled tiny model, a few generated problems, and the real learner, credit and loop.

Only the tiny model itself is kept between rehearsals. Whatever a fault may touch is made anew.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch

from lydian.data.arithmetic import arithmetic_preferences, arithmetic_problems, arithmetic_solutions
from lydian.data.forest import Item
from lydian.data.problems import Conversation, Message, Preference, Problem
from lydian.data.sequence import Sequence
from lydian.data.trajectory import Sampling
from lydian.models import load
from lydian.models.adapters import AdapterSettings
from lydian.models.policy import Policy
from lydian.rollout.engine import Engine
from lydian.rollout.local import LocalEngine
from lydian.rollout.scripted import ScriptedEngine
from lydian.text import encode
from lydian.text.template import Template, make_template
from lydian.training.algorithms import ALGORITHMS, Algorithm
from lydian.training.collect import Collected, Corpus, Rollouts, Source
from lydian.training.learner import Learner
from lydian.training.loop import Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from lydian.training.stage import make_credit, make_learner
from lydian.verifiers import make_verifier

PROBLEMS: dict[str, Any] = {"num": 3, "split": "train", "min_level": 2, "max_level": 4}
"""Three chains of unlike length; the generators give the same ones as problems, solutions and preferences."""

ADAPTER = AdapterSettings(rank=4, alpha=16.0)
"""Its scale is 4: leaving it out shows."""

MAX_TOKENS = 24


@functools.cache
def tiny() -> load.LoadedModel:
    """The bundled model as it comes; nobody trains this one."""
    return load.load_model("tiny")


def fresh_model(adapter: AdapterSettings | None = None) -> Any:
    """A copy of the tiny model to train, or the tiny model with a fresh adapter."""
    return load.load_model("tiny", adapter=adapter).model if adapter else copy.deepcopy(tiny().model)


def template() -> Template:
    """The prompt that the tiny model knows."""
    return make_template("plain", tiny().tokenizer, prompt="{question}\nSteps:")


def problems() -> list[Problem]:
    """Three problems."""
    return arithmetic_problems(**PROBLEMS)


def solutions() -> list[Conversation]:
    """The same with worked solutions."""
    return arithmetic_solutions(**PROBLEMS)


def preferences() -> list[Preference]:
    """The same with a right reply and a wrong one."""
    return arithmetic_preferences(**PROBLEMS)


def corpus(algorithm: Algorithm) -> list[Item]:
    """The items that an algorithm on given text trains on."""
    return encode.encode_items(preferences() if algorithm.data == "preferences" else solutions(), template())


def answered(preference: Preference, reply: str) -> Sequence:
    """A preference's prompt with one of its replies, encoded as a conversation."""
    whole = template().encode_conversation((*preference.messages, Message(role="assistant", content=reply)))
    return Sequence(id=reply, group=preference.id, tokens=whole.tokens, trained=whole.trained)


def log_likelihoods(model: Any, sequence: Sequence) -> torch.Tensor:
    """log π of the trained tokens, by the transformers model alone: one sequence, no forest, temperature 1."""
    with torch.no_grad():
        logprobs = model(input_ids=torch.tensor([sequence.tokens])).logits[0, :-1].log_softmax(-1)
    targets = torch.tensor(sequence.tokens[1:])
    return logprobs.gather(1, targets[:, None])[:, 0][torch.tensor(sequence.trained[1:])]


class Kept(Quiet):
    """A journal that keeps the metrics of each step and the items of each round."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[list[Sequence]] = []

    def collected(self, round: int, collected: Collected) -> None:
        """Keeps the items, their advantages assigned."""
        self.rounds.append([item for item in collected.items if isinstance(item, Sequence)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A stage that was run to its end.

    learner   with the trained policy
    settings  of the stage
    metrics   one mapping a step
    rounds    the sequences of each round of sampling, as they were trained on
    """

    learner: Learner
    settings: StageSettings
    metrics: list[dict[str, float]]
    rounds: list[list[Sequence]] = field(default_factory=list)


def settings_of(algorithm: str, **changed: Any) -> StageSettings:
    """Settings of a small stage with the algorithm's own normaliser; `changed` overrides them."""
    normaliser = ALGORITHMS[algorithm].defaults.get("normaliser", "token_mean")
    optimiser = OptimiserSettings(learning_rate=1e-4)
    return StageSettings(**{"normaliser": normaliser, "optimiser": optimiser, "num_samples": 4} | changed)


def learner_of(algorithm: str, settings: StageSettings, adapter: AdapterSettings | None = None) -> Learner:
    """The learner of such a stage, on a fresh copy of the tiny model."""
    learner = make_learner(Policy(fresh_model(adapter), layout="shared"), ALGORITHMS[algorithm], settings)
    assert isinstance(learner, Learner)  # the drills have no critic and no given text beside
    return learner


def rehearse(
    algorithm: str, *, adapter: AdapterSettings | None = None, sampling: Sampling | None = None, **changed: Any
) -> Rehearsal:
    """Runs a stage of the algorithm with Lydian's own loop.

    adapter   train a fresh adapter instead of all weights
    sampling  draw completions from the tiny model, each with an `=` in it rewarded; None replays right and wrong ones
    changed   settings of the stage
    """
    row, settings = ALGORITHMS[algorithm], settings_of(algorithm, **changed)
    learner = learner_of(algorithm, settings, adapter)
    is_given = row.data != "problems"
    source = Corpus(corpus(row)) if is_given else _rollouts(row, settings, sampling)
    journal = Kept()
    train(learner, source, settings, journal)
    return Rehearsal(learner=learner, settings=settings, metrics=journal.metrics, rounds=journal.rounds)


def _rollouts(row: Algorithm, settings: StageSettings, sampling: Sampling | None) -> Source:
    words = template()
    engine: Engine = ScriptedEngine(_script(settings.num_samples), stop_tokens=words.stop_tokens)
    if sampling is not None:
        engine = LocalEngine(fresh_model(), stop_tokens=words.stop_tokens, decode=words.decode)
    return Rollouts(
        engine=engine,
        template=words,
        verifier=make_verifier("pattern", pattern="=") if sampling else make_verifier("gsm8k"),
        problems=problems(),
        sampling=sampling or Sampling(max_tokens=MAX_TOKENS),
        num_samples=settings.num_samples,
        problems_per_round=settings.problems_per_round,
        credit=make_credit(row, settings, max_tokens=MAX_TOKENS),
        seed=0,
    )


def _script(num_samples: int) -> dict[str, Seq[tuple[int, ...]]]:
    """Of the completions of the k-th problem the first k are right, the others wrong: groups of unlike spread."""
    script: dict[str, Seq[tuple[int, ...]]] = {}
    for k, (problem, preference) in enumerate(zip(problems(), preferences(), strict=True), start=1):
        right, wrong = (answered(preference, reply) for reply in (preference.chosen, preference.rejected))
        replies = [tuple(itertools.compress(s.tokens, s.trained)) for s in (right, wrong)]
        script[problem.id] = [replies[sample >= k] for sample in range(num_samples)]
    return script
