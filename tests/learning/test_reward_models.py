"""Do the losses of what judges teach it to judge? The same assertions fail for losses broken on purpose.

Letters again: replies end without a stop token, so that the state before a reply's last letter has not seen it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lydian.data.forest import Item, Normaliser, Sites
from lydian.data.pair_rules import PairRules
from lydian.data.pairs import build_pairs
from lydian.data.rows import load_judged
from lydian.data.sequence import Pair, Sequence
from lydian.models.fresh import tiny_untrained
from lydian.models.heads import Head
from lydian.models.policy import Policy
from lydian.models.reward_model import head_outputs, last_scores
from lydian.objectives.likelihood import classification
from lydian.objectives.loss import Loss
from lydian.objectives.reward import bradley_terry, process_reward
from lydian.text.encode import encode_items
from lydian.text.template import PlainTemplate
from lydian.training.collect import Corpus
from lydian.training.learner import Learner
from lydian.training.loop import Quiet, train
from lydian.training.optim import OptimiserSettings
from lydian.training.settings import StageSettings
from tests.training.toys import ids_of, llama

NUM_TRAINED, NUM_HELD_OUT = 96, 64
GOOD, BAD = "abcd", "wxyz"
MIDDLE = "efghijklmnop"


class ReadsTooEarly(Head):
    """Judges from the state that predicts a token, which has not read it."""

    def at_sites(self, states: Tensor, sites: Sites) -> Tensor:
        return self(states[sites.source])


def fit(
    objective: Callable[..., Loss], head: Head, items: list[Item], normaliser: Normaliser, **settings: int
) -> Policy:
    learner = Learner(
        Policy(llama(), head=head),
        objective=objective,
        normaliser=normaliser,
        optimiser=OptimiserSettings(learning_rate=3e-3, schedule="cosine", warmup_share=0.1),
    )
    train(learner, Corpus(items), StageSettings(**{"epochs": 6, "batch_size": 16, **settings}), Quiet(), seed=0)
    return learner.policy


def flipped(loss: Callable[..., Loss]) -> Callable[..., Loss]:
    """The loss with its sign turned, bounded so that it cannot run away."""

    @functools.wraps(loss)
    def objective(*data: Tensor) -> Loss:
        found = loss(*data)
        return Loss(-found.loss.clamp(max=20), found.statistics)

    return objective


def sequence(name: str, group: str, text: str, sites: set[int], **more: dict) -> Sequence:
    return Sequence(
        id=name, group=group, tokens=ids_of(text), trained=tuple(t in sites for t in range(len(text))), **more
    )


# ── Reward model: two replies that differ in their last letter ──────────────────────────────────────────────────────


def letter_pairs(num: int, seed: int) -> list[Pair]:
    draw = random.Random(seed)
    pairs = []
    for k in range(num):
        shared = "".join(draw.choices(MIDDLE, k=4))
        sides = {}
        for side, letters in (("chosen", GOOD), ("rejected", BAD)):
            facts = {"pair": float(k), "is_chosen": float(side == "chosen")}
            sides[side] = sequence(f"{k}/{side}", str(k), shared + draw.choice(letters), {2, 3, 4}, facts=facts)
        pairs.append(Pair(**sides))
    return pairs


def share_ordered(policy: Policy) -> float:
    """The share of new pairs whose chosen reply scores higher; ties are no success."""
    pairs = letter_pairs(NUM_HELD_OUT, seed=1)
    chosen, rejected = (last_scores(policy, [getattr(p, side) for p in pairs]) for side in ("chosen", "rejected"))
    return sum(a > b for a, b in zip(chosen, rejected, strict=True)) / len(pairs)


def test_a_reward_model_learns_to_order_new_pairs():
    policy = fit(bradley_terry, Head("score", 32), letter_pairs(NUM_TRAINED, seed=0), "pair_mean")
    assert share_ordered(policy) > 0.95


@pytest.mark.parametrize("broken", ["sign", "reads too early", "chosen and rejected swapped"])
def test_a_broken_reward_model_does_not(broken: str):
    head = ReadsTooEarly("score", 32) if broken == "reads too early" else Head("score", 32)
    pairs = letter_pairs(NUM_TRAINED, seed=0)
    if "swapped" in broken:
        pairs = [Pair(chosen=_with_chosen(p.rejected, 1.0), rejected=_with_chosen(p.chosen, 0.0)) for p in pairs]
    objective = flipped(bradley_terry) if broken == "sign" else bradley_terry
    assert share_ordered(fit(objective, head, pairs, "pair_mean")) < 0.6


def _with_chosen(s: Sequence, is_chosen: float) -> Sequence:
    return Sequence(
        id=s.id, group=s.group, tokens=s.tokens, trained=s.trained, facts={**s.facts, "is_chosen": is_chosen}
    )


# ── Process reward model: steps of two letters, right if the second is a good one ───────────────────────────────────


def stepped(num: int, seed: int) -> list[Sequence]:
    draw = random.Random(seed)
    found = []
    for k in range(num):
        ends = draw.choices(GOOD + BAD, k=3)
        text = draw.choice(MIDDLE) + "".join(draw.choice(MIDDLE) + end for end in ends)
        target = [0.0] * len(text)
        for step, end in enumerate(ends):
            target[2 + 2 * step] = float(end in GOOD)
        found.append(sequence(str(k), str(k), text, {2, 4, 6}, streams={"target_score": tuple(target)}))
    return found


def share_of_steps(policy: Policy) -> float:
    held_out = stepped(NUM_HELD_OUT, seed=1)
    guesses = torch.cat(head_outputs(policy, held_out)) > 0
    labels = torch.tensor([s.streams["target_score"][t] for s in held_out for t in (2, 4, 6)]) > 0.5
    return (guesses == labels).float().mean().item()


def test_a_process_reward_model_learns_to_judge_new_steps():
    assert share_of_steps(fit(process_reward, Head("score", 32), stepped(NUM_TRAINED, 0), "token_mean")) > 0.95


@pytest.mark.parametrize("broken", ["sign", "reads too early"])
def test_a_broken_process_reward_model_does_not(broken: str):
    head = ReadsTooEarly("score", 32) if broken == "reads too early" else Head("score", 32)
    objective = flipped(process_reward) if broken == "sign" else process_reward
    assert share_of_steps(fit(objective, head, stepped(NUM_TRAINED, 0), "token_mean")) < 0.7


# ── Classifier: which of three letters the text ends with ───────────────────────────────────────────────────────────


def texts(num: int, seed: int) -> list[Sequence]:
    draw = random.Random(seed)
    found = []
    for k in range(num):
        label = draw.randrange(3)
        text = "".join(draw.choices(MIDDLE, k=4)) + "qrs"[label]
        found.append(sequence(str(k), str(k), text, {4}, facts={"label": float(label)}))
    return found


def share_named(policy: Policy) -> float:
    held_out = texts(NUM_HELD_OUT, seed=1)
    guesses = torch.cat(head_outputs(policy, held_out)).argmax(-1)
    return (guesses == torch.tensor([s.facts["label"] for s in held_out])).float().mean().item()


def test_a_classifier_learns_to_name_new_texts():
    head = Head("class_logits", 32, 3)
    assert share_named(fit(classification, head, texts(NUM_TRAINED, 0), "sequence_mean")) > 0.95


@pytest.mark.parametrize("broken", ["sign", "reads too early"])
def test_a_broken_classifier_does_not(broken: str):
    head = (ReadsTooEarly if broken == "reads too early" else Head)("class_logits", 32, 3)
    objective = flipped(classification) if broken == "sign" else classification
    assert share_named(fit(objective, head, texts(NUM_TRAINED, 0), "sequence_mean")) < 0.7


# ── Real pairs: model solutions of GSM8K, right over wrong ones ─────────────────────────────────────────────────────

SOLVERS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
SOLUTIONS = Path(os.environ.get("LYDIAN_DATA", "data")) / "gsm8k" / "example_model_solutions.jsonl"


@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="LYDIAN_DATA has no GSM8K model solutions")
def test_two_steps_on_real_model_solutions():
    """Each pair has one right and one wrong solution of a problem; the tiny tokenizer takes any text. At the first step
    all scores are equal, so that the loss is log 2; the second step has moved them."""
    columns = {"prompt": "question", "completion": "solution", "label": "is_correct"}
    rows = [json.loads(line) for line in SOLUTIONS.read_text(encoding="utf-8").splitlines()[:40]]
    judged = load_judged(rows, columns=columns, spread=SOLVERS).items
    assert len(judged) == 4 * 40
    built = build_pairs(judged, PairRules())
    is_right = {(reply.messages, reply.reply): reply.is_correct for reply in judged}
    assert len(built.items) > 10
    assert all(is_right[p.messages, p.chosen] and not is_right[p.messages, p.rejected] for p in built.items)
    model, tokenizer = tiny_untrained()
    template = PlainTemplate(tokenizer, prompt="{question}\n")
    items = [p for p in encode_items(built.items, template) if max(len(p.chosen.tokens), len(p.rejected.tokens)) <= 512]
    learner = Learner(
        Policy(model, head=Head("score", model.config.hidden_size)),
        objective=bradley_terry,
        normaliser="pair_mean",
        optimiser=OptimiserSettings(learning_rate=1e-3),
    )
    journal = Quiet()
    train(learner, Corpus(items[:8]), StageSettings(batch_size=4), journal, seed=0)
    assert [metrics["loss"] for metrics in journal.metrics] == [
        pytest.approx(math.log(2)),
        pytest.approx(0.69, abs=0.1),
    ]
    assert journal.metrics[1]["margin"] != 0.0
