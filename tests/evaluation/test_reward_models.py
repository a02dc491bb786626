"""Reports on what judges, against numbers worked out by hand on heads whose scores are known.

The head here is given: `Scored` puts a number that the test chose in place of what the model would say of a text.
"""

from __future__ import annotations

import json
import math

import pytest
import torch

from lydian.data.labelled import Labelled, Stepwise
from lydian.data.problems import Message, Preference
from lydian.errors import InputError
from lydian.evaluation import reward_models
from lydian.evaluation.reward_models import (
    calibration,
    calibration_error,
    evaluate_classifier,
    evaluate_judging,
    evaluate_process_model,
    evaluate_reward_model,
    judging_facts,
    save_report,
    spearman,
)
from lydian.models.heads import Head
from lydian.models.policy import Policy
from tests.training.toys import Letters, llama

ASK = (Message(role="user", content="qq"),)


def policy(output="score", width=1, **facts) -> Policy:
    return Policy(llama(), head=Head(output, 32, width, facts=facts))


def scripted(monkeypatch, outputs):
    """`outputs(sequence)` in place of the head's outputs at the sequence's sites."""
    monkeypatch.setattr(reward_models, "head_outputs", lambda _, sequences: [outputs(s) for s in sequences])
    monkeypatch.setattr(reward_models, "last_scores", lambda _, sequences: [outputs(s)[-1].item() for s in sequences])


def pair(name: str, chosen: str, rejected: str) -> Preference:
    return Preference(id=name, messages=ASK, chosen=chosen, rejected=rejected)


def reply_of(sequence) -> str:
    return Letters().decode(sequence.tokens[2:])


SCORES = {"a": 2.0, "b": 0.0, "cd": 1.0, "efg": 1.0, "h": -1.0, "ij": 1.0}


def test_pairs_by_hand(monkeypatch):
    """Margins 2 (a over b), 0 (cd, efg), −2 (h, ij): one right, one tie, one wrong, so accuracy ½ of 3.

    |m| = 2 twice gives the confidence σ(2) = 0.8808, of which half was right; the tie has confidence ½ and counts
    half. ECE = 2/3 · |0.8808 − 0.5| + 1/3 · 0 = 0.2539. Lengths with the stop token 2, 2 | 3, 4 | 2, 3: alike, then
    twice a shorter chosen one, of which the tie and the loss make ¼.
    """
    scripted(monkeypatch, lambda s: torch.tensor([SCORES[reply_of(s)]]))
    pairs = [pair("1", "a", "b"), pair("2", "cd", "efg"), pair("3", "h", "ij")]
    report = evaluate_reward_model(policy(), pairs, Letters())
    assert (report.accuracy.value, report.accuracy.num, report.accuracy.method) == (0.5, 3, "wilson")
    assert (report.num_ties, report.mean_margin) == (1, 0.0)
    assert [(found.num, round(found.predicted, 4), found.observed) for found in report.calibration] == [
        (1, 0.5, 0.5),
        (2, 0.8808, 0.5),
    ]
    assert report.calibration_error == pytest.approx(2 / 3 * (1 / (1 + math.exp(-2)) - 0.5))
    assert report.by_length["alike"].value == 1.0
    assert (report.by_length["chosen_shorter"].value, report.by_length["chosen_shorter"].num) == (0.25, 2)
    assert report.by_length["chosen_longer"] is None
    assert report.mean == pytest.approx(4 / 6)


def test_a_score_that_is_the_length_correlates_wholly(monkeypatch):
    scripted(monkeypatch, lambda s: torch.tensor([float(len(s.tokens))]))
    pairs = [pair("1", "a", "bc"), pair("2", "abc", "abcd")]
    assert evaluate_reward_model(policy(), pairs, Letters()).length_correlation == pytest.approx(1.0)
    scripted(monkeypatch, lambda s: torch.tensor([1.0]))
    assert evaluate_reward_model(policy(), pairs, Letters()).length_correlation is None


def test_an_untrained_head_ties_every_pair():
    """Scores are all 0 at first: accuracy ½ and calibrated at that."""
    report = evaluate_reward_model(policy(), [pair("1", "a", "b"), pair("2", "c", "de")], Letters())
    assert (report.accuracy.value, report.num_ties, report.calibration_error) == (0.5, 2, 0.0)


def test_steps_by_hand(monkeypatch):
    """Logits 3, −1 | −1 for labels 1, 1 | 0, and one step nobody labelled: 2 of 3 right, over 2 replies."""
    logits = {"abcd": [3.0, -1.0], "efgh": [-1.0]}
    scripted(monkeypatch, lambda s: torch.tensor(logits[reply_of(s)]))
    items = [
        Stepwise(id="1", messages=ASK, steps=("ab", "cd"), labels=(1.0, 1.0)),
        Stepwise(id="2", messages=ASK, steps=("ef", "gh"), labels=(None, 0.0)),
    ]
    report = evaluate_process_model(policy(), items, Letters())
    assert report.accuracy.value == pytest.approx(2 / 3)
    assert report.share_right == pytest.approx(2 / 3)
    assert "cluster" in report.accuracy.method
    assert [found.num for found in report.calibration] == [2, 1]  # σ(1) = 0.731 twice, σ(3) = 0.953


def test_classes_by_hand(monkeypatch):
    """x as x, x as y, y as y: 2 of 3."""
    logits = {"aa": [2.0, 0.0], "bb": [0.0, 2.0], "cc": [0.0, 2.0]}
    scripted(monkeypatch, lambda s: torch.tensor([logits[Letters().decode(s.tokens)]]))
    items = [
        Labelled(id=text, messages=(Message(role="user", content=text),), label=label)
        for text, label in (("aa", "x"), ("bb", "x"), ("cc", "y"))
    ]
    report = evaluate_classifier(policy("class_logits", 2, classes=["x", "y"]), items, Letters())
    assert report.accuracy.value == pytest.approx(2 / 3)
    assert report.confusion == {"x": {"x": 1, "y": 1}, "y": {"x": 0, "y": 1}}


def test_every_kind_of_data_has_its_report_and_json(tmp_path):
    steps = Stepwise(id="1", messages=ASK, steps=("ab",), labels=(1.0,))
    texts = [Labelled(id=label, messages=ASK, label=label) for label in "xy"]
    classifier = policy("class_logits", 2, classes=["x", "y"])
    for model, items, kind in (
        (policy(), [pair("1", "a", "b")], "reward_model"),
        (policy(), [steps], "process_reward_model"),
        (classifier, texts, "classifier"),
    ):
        report = evaluate_judging(model, items, Letters())
        save_report(report, tmp_path / "report.json")
        row = json.loads((tmp_path / "report.json").read_text())
        assert row == json.loads(json.dumps(report.as_row()))
        assert row["kind"] == kind and 0 <= row["accuracy"]["low"] <= row["accuracy"]["high"] <= 1


@pytest.mark.parametrize("items", [[], [object()]])
def test_nothing_and_other_things_are_refused(items):
    with pytest.raises(InputError):
        evaluate_judging(policy(), items, Letters())


def test_what_a_head_keeps(monkeypatch):
    """Scores 2 and 0: mean 1, deviation 1."""
    scripted(monkeypatch, lambda s: torch.tensor([SCORES[reply_of(s)]]))
    facts = judging_facts(policy(), [pair("1", "a", "b")], Letters(), {"prompt": "{question}"})
    assert facts == {
        "template": {"kind": "letters", "settings": {"prompt": "{question}"}},
        "template_fingerprint": "letters:1",
        "mean": 1.0,
        "deviation": 1.0,
    }
    assert "mean" not in judging_facts(policy(), [], Letters(), {})


def test_the_highest_confidence_falls_into_the_last_bin():
    bins = calibration([(1.0, 1.0), (0.95, 0.0), (0.0, 1.0)])
    assert [(found.low, found.num) for found in bins] == [(0.0, 1), (0.9, 2)]
    assert calibration_error(bins) == pytest.approx(1 / 3 * 1 + 2 / 3 * (0.975 - 0.5))


def test_spearman_with_ties():
    """Ranks 1.5, 1.5, 3 and 1, 2, 3: covariance 1.5, norms √1.5 and √2, so ρ = 1.5 / √3 = 0.866."""
    assert spearman([5, 5, 9], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
