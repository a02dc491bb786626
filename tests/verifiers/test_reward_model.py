"""A reward model as verifier: its scores are the model's, batched or not, and nothing that a policy writes raises."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lydian.data.arithmetic import arithmetic_preferences, arithmetic_problems
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.errors import ModelError, RecipeError
from lydian.models.reward_model import RewardModel as LoadedModel
from lydian.models.reward_model import head_outputs, last_scores
from lydian.text.label_sites import last_token, step_ends
from lydian.text.template import PlainTemplate
from lydian.verifiers import make_verifier, verify_all
from lydian.verifiers.reward_model import Reply, RewardModel
from lydian.verifiers.self_test import require_sound, self_test
from lydian.verifiers.verifier import bare_problem, is_label_free
from tests.models.judging import PROMPT, saved


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {
        "outcome": saved(place / "outcome", mean=1.0, deviation=4.0),
        "process": saved(place / "process", steps="comma"),
        "classes": saved(place / "classes", "class_logits", 2, classes=["a", "b"]),
    }


@pytest.fixture(scope="module")
def outcome(folders) -> RewardModel:
    return RewardModel(model=str(folders["outcome"]))


PAIRS = arithmetic_preferences(num=5, seed=2)
ITEMS = [
    (bare_problem(None, question=pair.messages[0].content), reply, Finish.STOP)
    for pair in PAIRS
    for reply in (pair.chosen, pair.rejected)
]


def test_scores_are_the_models_whatever_the_batch(folders, outcome):
    """By `last_scores` on sequences made here; one at a time as all at once."""
    model = LoadedModel.load(folders["outcome"])
    template = PlainTemplate(model.tokenizer, prompt=PROMPT)
    sequences = [last_token(str(k), p.messages, text, template) for k, (p, text, _) in enumerate(ITEMS)]
    expected = last_scores(model.policy, sequences)
    assert [v.score for v in verify_all(outcome, ITEMS)] == pytest.approx(expected, abs=2e-5)
    assert [outcome.verify(*item).score for item in ITEMS] == pytest.approx(expected, abs=2e-5)


def test_scales(folders, outcome):
    """σ(r) and (r − 1) / 4, with the mean and deviation that the head keeps."""
    raw = outcome.verify(*ITEMS[0]).score
    for scale, expected in (("sigmoid", 1 / (1 + math.exp(-raw))), ("normalised", (raw - 1) / 4)):
        verifier = make_verifier("reward_model", model=str(folders["outcome"]), scale=scale)
        assert verifier.verify(*ITEMS[0]).score == pytest.approx(expected)


def test_steps_are_aggregated_by_name(folders):
    model = LoadedModel.load(folders["process"])
    template = PlainTemplate(model.tokenizer, prompt=PROMPT)
    problem, reply, _ = ITEMS[0]
    steps = head_outputs(model.policy, [step_ends("a", problem.messages, reply, template, rule="comma")])[0].sigmoid()
    expected = {"min": steps.min(), "last": steps[-1], "product": steps.prod(), "mean": steps.mean()}
    for how, value in expected.items():
        verdict = make_verifier("reward_model", model=str(folders["process"]), aggregation=how).verify(*ITEMS[0])
        assert verdict.score == pytest.approx(value.item(), abs=1e-5)
        assert f"{how} of {len(steps)} steps" in verdict.reason


def test_the_threshold_says_what_is_correct(outcome):
    score = outcome.verify(*ITEMS[0]).score
    for threshold, expected in ((None, Outcome.WRONG), (score - 1, Outcome.CORRECT), (score + 1, Outcome.WRONG)):
        verifier = RewardModel(scorer=outcome.scorer, threshold=threshold)
        assert verifier.verify(*ITEMS[0]).outcome is expected
    cut = RewardModel(scorer=outcome.scorer, threshold=1e9).verify(ITEMS[0][0], "14+9=2", Finish.LENGTH)
    assert cut.outcome is Outcome.TRUNCATED and cut.score is not None


def test_a_reply_that_was_cut_off_is_read_without_a_stop_token(outcome):
    problem = ITEMS[0][0]
    scores = [outcome.verify(problem, "14+9=23", finish).score for finish in (Finish.STOP, Finish.LENGTH)]
    assert scores[0] != scores[1]


@pytest.mark.parametrize("kind", ["outcome", "process"])
@pytest.mark.parametrize("text", ["", " \n", "<eos> more", "\ud800 4", "9" * 5000, "\x00\x1b", "a" * 3 + "," * 400])
def test_nothing_that_a_model_writes_raises_or_is_paid(folders, kind: str, text: str):
    """Beside others in one batch, too; the empty reply has a score, what cannot be read has none."""
    verifier = RewardModel(model=str(folders[kind]), threshold=1e9)
    for finish in Finish:
        verdicts = verify_all(verifier, [ITEMS[0], (ITEMS[0][0], text, finish), ITEMS[1]])
        (alone,) = verify_all(verifier, [(ITEMS[0][0], text, finish)])
        assert alone.score == pytest.approx(verdicts[1].score, abs=2e-5)
        assert not verdicts[1].is_correct
        assert (verdicts[1].score is None) == (text[0:3] in ("<eo", "999"))
        assert [v.score for v in verdicts[::2]] == pytest.approx(
            [verifier.verify(*i).score for i in ITEMS[:2]], abs=2e-5
        )
    if text[0:3] == "999":
        assert "the model reads 512" in verdicts[1].reason


def test_the_fingerprint_says_which_weights_and_that_no_answer_was_read(folders, outcome, tmp_path):
    assert is_label_free(outcome.fingerprint)
    assert outcome.verify(*ITEMS[0]).parts == {"label_free": 1.0}
    same = RewardModel(model=str(folders["outcome"]))
    other = RewardModel(model=str(saved(tmp_path / "other", mean=2.0, deviation=4.0)))
    prints = {outcome.fingerprint, other.fingerprint, RewardModel(scorer=outcome.scorer, threshold=0.0).fingerprint}
    assert same.fingerprint == outcome.fingerprint
    assert len(prints) == 3


def test_what_it_cannot_be_made_of_is_refused(folders, tmp_path):
    with pytest.raises(ModelError, match="classifier"):
        RewardModel(model=str(folders["classes"]))
    with pytest.raises(ModelError, match=r"head\.safetensors"):
        RewardModel(model="tiny")
    with pytest.raises(ModelError, match="by its fingerprint"):
        RewardModel(model=str(saved(tmp_path / "moved", template_fingerprint="another")))
    for settings in ({}, {"model": "x", "scale": "log"}, {"model": "x", "aggregation": "max"}):
        with pytest.raises(RecipeError):
            RewardModel(**settings)
    with pytest.raises(RecipeError, match="normalised"):
        RewardModel(model=str(folders["process"]), scale="normalised")


def test_the_self_test_asks_only_what_it_can_answer(outcome):
    """No question about gold answers; that copies of the prompt are paid is found out."""
    problems = arithmetic_problems(num=8, split="train")
    strict = RewardModel(scorer=outcome.scorer, threshold=1e9)
    assert [finding.name for finding in self_test(strict, problems)] == ["empty", "prompt copied"]
    require_sound(strict, problems, where="stage")
    generous = RewardModel(scorer=outcome.scorer, threshold=-1e9)
    assert [f.name for f in self_test(generous, problems) if not f.is_passed] == ["prompt copied"]


def test_a_reply_knows_whether_it_ended():
    """What a scorer handed over by code is given."""
    seen: list[Reply] = []

    class Keeps:
        digest = "keeps"
        facts: dict = {}  # noqa: RUF012

        def scores(self, replies):
            seen.extend(replies)
            return [[0.0] for _ in replies]

    RewardModel(scorer=Keeps()).verify_many([(ITEMS[0][0], "a", Finish.STOP), (ITEMS[0][0], "b", Finish.ABORT)])
    assert [(reply.text, reply.is_ended) for reply in seen] == [("a", True), ("b", False)]
