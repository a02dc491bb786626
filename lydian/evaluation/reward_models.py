"""How good something that judges is: reward models on pairs, process reward models on steps, classifiers on classes."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch

from lydian.data.atomic import write_atomically
from lydian.data.labelled import Labelled, Stepwise
from lydian.data.problems import Preference
from lydian.data.sequence import Sequence
from lydian.errors import InputError
from lydian.evaluation.records import EvalReport
from lydian.evaluation.rescore import rescore
from lydian.evaluation.statistics import Estimate, clustered, wilson
from lydian.models.policy import Policy
from lydian.models.reward_model import head_outputs, last_scores
from lydian.text.encoded import Template
from lydian.text.label_sites import encode_labelled, encode_stepwise, last_token
from lydian.verifiers.verifier import Verifier

NUM_BINS = 10
NUM_SCALED = 256
"""Pairs that the scale of the scores is measured on, at most."""
ALIKE = 0.1
"""Lengths that differ by at most this share of the longer one count as alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """What was predicted with a confidence within [low, high), or at 1 in the last bin.

    num        how many predictions
    predicted  their mean confidence
    observed   share of them that were right
    """

    low: float
    high: float
    num: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardReport:
    """A reward model on pairs, with r the score and m = r_chosen − r_rejected.

    accuracy     share of pairs with m > 0, ties half; Wilson
    num_ties     pairs with m = 0
    mean_margin  mean of m
    calibration  pairs by the confidence σ(|m|) that the one with the higher score is the chosen one
    calibration_error  Σ_b n_b / N · |predicted_b − observed_b|
    length_correlation  Spearman's ρ of score and length in tokens over all replies; None if either never varies
    by_length    accuracy where the chosen reply is shorter, alike (within 10 %) or longer; None where there is no pair
    mean, deviation  of the scores of all replies: the scale that a verifier can normalise by
    """

    accuracy: Estimate
    num_ties: int
    mean_margin: float
    calibration: tuple[Bin, ...]
    calibration_error: float
    length_correlation: float | None
    by_length: Mapping[str, Estimate | None]
    mean: float
    deviation: float

    def as_row(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {"kind": "reward_model", **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A process reward model on labelled steps; a step's probability to be right is p = σ(r).

    accuracy     share of steps with p and the label on one side of ½, over replies as clusters
    share_right  share of steps whose label is above ½: what always saying so would get, if it is above ½
    calibration, calibration_error  by the confidence max(p, 1 − p), as of `RewardReport`
    """

    accuracy: Estimate
    share_right: float
    calibration: tuple[Bin, ...]
    calibration_error: float

    def as_row(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {"kind": "process_reward_model", **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassReport:
    """A classifier on labelled texts.

    accuracy   share of texts whose most probable class is theirs; Wilson
    confusion  class → predicted class → texts
    calibration, calibration_error  by the probability of the predicted class, as of `RewardReport`
    """

    accuracy: Estimate
    confusion: Mapping[str, Mapping[str, int]]
    calibration: tuple[Bin, ...]
    calibration_error: float

    def as_row(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {"kind": "classifier", **asdict(self)}


Report = RewardReport | StepReport | ClassReport


def evaluate_reward_model(policy: Policy, preferences: Seq[Preference], template: Template) -> RewardReport:
    """Scores both replies of each pair, each at its last token. Raises InputError without pairs.

    policy  a model with a score head
    """
    _require(preferences, "preferences")
    replies = _replies(preferences, template)
    scores = last_scores(policy, replies)
    prompts = [len(template.encode_prompt(pair.messages)) for pair in preferences]
    lengths = [len(reply.tokens) - prompts[number // 2] for number, reply in enumerate(replies)]
    margins = [chosen - rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)]
    right = [_half_step(margin) for margin in margins]
    bins = calibration([(_sigmoid(abs(margin)), share) for margin, share in zip(margins, right, strict=True)])
    strata: dict[str, list[float]] = {"chosen_shorter": [], "alike": [], "chosen_longer": []}
    for share, chosen, rejected in zip(right, lengths[::2], lengths[1::2], strict=True):
        is_alike = abs(chosen - rejected) <= ALIKE * max(chosen, rejected)
        strata["alike" if is_alike else "chosen_longer" if chosen > rejected else "chosen_shorter"].append(share)
    return RewardReport(
        accuracy=wilson(fmean(right), len(right)),
        num_ties=right.count(0.5),
        mean_margin=fmean(margins),
        calibration=bins,
        calibration_error=calibration_error(bins),
        length_correlation=spearman(scores, lengths),
        by_length={name: wilson(fmean(marks), len(marks)) if marks else None for name, marks in strata.items()},
        mean=fmean(scores),
        deviation=pstdev(scores),
    )


def evaluate_process_model(policy: Policy, items: Seq[Stepwise], template: Template) -> StepReport:
    """Judges the labelled steps of each reply, each at its end. Raises InputError without replies.

    policy  a model with a score head
    """
    _require(items, "replies with step labels")
    sequences = [encode_stepwise(item, template) for item in items]
    probabilities = [output.sigmoid().tolist() for output in head_outputs(policy, sequences)]
    marks, replies, confidence, labels = [], [], [], []
    for item, steps in zip(items, probabilities, strict=True):
        known = [label for label in item.labels if label is not None]
        for label, probability in zip(known, steps, strict=True):
            marks.append(float((probability > 0.5) == (label > 0.5)))
            replies.append(item.id)
            confidence.append(max(probability, 1 - probability))
            labels.append(label)
    bins = calibration(list(zip(confidence, marks, strict=True)))
    return StepReport(
        accuracy=clustered(marks, replies),
        share_right=fmean(label > 0.5 for label in labels),
        calibration=bins,
        calibration_error=calibration_error(bins),
    )


def evaluate_classifier(policy: Policy, items: Seq[Labelled], template: Template) -> ClassReport:
    """Names the most probable class of each text, read at its last token. Raises InputError without texts.

    policy  a model with a class head that knows its `classes`
    """
    _require(items, "texts with a class")
    assert policy.head is not None  # head_outputs says what is missing
    classes = policy.head.facts["classes"]
    sequences = [encode_labelled(item, template, classes) for item in items]
    chances = torch.cat(head_outputs(policy, sequences)).softmax(-1)
    confidence, best = chances.max(-1)
    predicted = [classes[k] for k in best.tolist()]
    marks = [float(item.label == guess) for item, guess in zip(items, predicted, strict=True)]
    counts = Counter((item.label, guess) for item, guess in zip(items, predicted, strict=True))
    bins = calibration(list(zip(confidence.tolist(), marks, strict=True)))
    return ClassReport(
        accuracy=wilson(fmean(marks), len(marks)),
        confusion={name: {other: counts[name, other] for other in classes} for name in classes},
        calibration=bins,
        calibration_error=calibration_error(bins),
    )


def evaluate_judging(policy: Policy, items: Seq[Any], template: Template) -> Report:
    """The report for data of whichever kind: preferences, step-labelled replies or texts with a class.

    Raises InputError for no items, or for items of another kind.
    """
    _require(items, "items")
    if isinstance(items[0], Preference):
        return evaluate_reward_model(policy, items, template)
    if isinstance(items[0], Stepwise):
        return evaluate_process_model(policy, items, template)
    if isinstance(items[0], Labelled):
        return evaluate_classifier(policy, items, template)
    raise InputError(
        where="evaluate_judging",
        given=f"a {type(items[0]).__name__}",
        expected="preferences, replies with step labels, or texts with a class",
        fix="Load the data as one of these.",
    )


def judging_facts(policy: Policy, items: Seq[Any], template: Template, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a head must know to judge elsewhere: the template that it was trained with, and the scale of its scores.

    items     what it was trained on; the scale is the mean and deviation of the scores of its first pairs' replies
    settings  the template's, as `make_template` takes them
    """
    facts: dict[str, Any] = {
        "template": {"kind": template.name, "settings": dict(settings)},
        "template_fingerprint": template.fingerprint,
    }
    pairs = [item for item in items if isinstance(item, Preference)][:NUM_SCALED]
    if pairs:
        scores = last_scores(policy, _replies(pairs, template))
        facts |= {"mean": fmean(scores), "deviation": pstdev(scores)}
    return facts


def _replies(preferences: Seq[Preference], template: Template) -> list[Sequence]:
    """The chosen and the rejected reply of each pair in turn, each read at its last token."""
    return [
        last_token(f"{number}/{side}", pair.messages, reply, template)
        for number, pair in enumerate(preferences)
        for side, reply in (("chosen", pair.chosen), ("rejected", pair.rejected))
    ]


def score_samples(report: EvalReport, verifier: Verifier) -> dict[tuple[str, int], float]:
    """(problem id, sample) → score of the verifier, for `at_k`: best-of-k of stored samples under a reward model.

    Samples that it cannot judge have none. Raises InputError for a report without its problems.
    """
    judged = rescore(report, verifier)
    return {(row.problem_id, row.sample): row.score for row in judged.records if row.score is not None}


def save_report(report: Report, path: Path) -> None:
    """Writes the report as JSON, whole or not at all."""
    write_atomically(path, json.dumps(report.as_row(), indent=2, allow_nan=False) + "\n")


def calibration(predictions: Seq[tuple[float, float]], *, num_bins: int = NUM_BINS) -> tuple[Bin, ...]:
    """Predictions by confidence, in bins of equal width over [0, 1]; empty bins are left out.

    predictions  (confidence in [0, 1], how right it was in [0, 1]) each

    >>> [(found.low, found.num, found.observed) for found in calibration([(0.65, 1.0), (0.68, 0.0), (1.0, 1.0)])]
    [(0.6, 2, 0.5), (0.9, 1, 1.0)]
    """
    bins: dict[int, list[tuple[float, float]]] = {}
    for confidence, mark in predictions:
        bins.setdefault(min(int(confidence * num_bins), num_bins - 1), []).append((confidence, mark))
    return tuple(
        Bin(
            low=place / num_bins,
            high=(place + 1) / num_bins,
            num=len(found),
            predicted=fmean(confidence for confidence, _ in found),
            observed=fmean(mark for _, mark in found),
        )
        for place, found in sorted(bins.items())
    )


def calibration_error(bins: Seq[Bin]) -> float:
    """Expected calibration error, Σ_b n_b / N · |predicted_b − observed_b|.

    Source: Naeini et al. (2015), "Obtaining well calibrated probabilities using Bayesian binning".

    >>> round(calibration_error(calibration([(0.65, 1.0), (0.65, 0.0), (1.0, 1.0)])), 3)  # 2/3 · 0.15
    0.1
    """
    total = sum(found.num for found in bins)
    return sum(found.num / total * abs(found.predicted - found.observed) for found in bins)


def spearman(one: Seq[float], other: Seq[float]) -> float | None:
    """Spearman's ρ, Pearson's correlation of ranks, ties sharing their mean rank; None if either never varies.

    >>> spearman([1, 2, 3], [10, 30, 20]), spearman([1, 1], [1, 2])
    (0.5, None)
    """
    ranks = [_ranks(values) for values in (one, other)]
    centred = [[rank - fmean(column) for rank in column] for column in ranks]
    norms = [math.sqrt(math.fsum(x * x for x in column)) for column in centred]
    if not all(norms):
        return None
    return math.fsum(a * b for a, b in zip(*centred, strict=True)) / (norms[0] * norms[1])


def _ranks(values: Seq[float]) -> list[float]:
    counts = Counter(values)
    first, rank_of = 0, {}
    for value in sorted(counts):
        rank_of[value] = first + (counts[value] - 1) / 2
        first += counts[value]
    return [rank_of[value] for value in values]


def _half_step(margin: float) -> float:
    return 0.5 if margin == 0 else float(margin > 0)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else 1 - 1 / (1 + math.exp(value))


def _require(items: Seq[object], what: str) -> None:
    if not items:
        raise InputError(where="the evaluation of a head", given="no data", expected=what, fix="Give at least one.")
