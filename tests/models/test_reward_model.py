"""A saved reward model gives each text the number that transformers alone gives it, in whatever batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from lydian.data.arithmetic import arithmetic_preferences
from lydian.errors import ModelError
from lydian.models.reward_model import RewardModel, head_outputs, last_scores
from lydian.text.label_sites import last_token, step_ends
from lydian.text.template import PlainTemplate
from tests.models.judging import PROMPT, saved


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "rm", mean=1.0)


@pytest.fixture(scope="module")
def model(folder: Path) -> RewardModel:
    return RewardModel.load(folder)


@pytest.fixture(scope="module")
def sequences(model: RewardModel):
    """Replies of several lengths, two to a prompt, so that trees are shared and rows are packed."""
    template = PlainTemplate(model.tokenizer, prompt=PROMPT)
    return [
        last_token(f"{pair.id}/{reply}", pair.messages, reply, template)
        for pair in arithmetic_preferences(num=12, seed=5)
        for reply in (pair.chosen, pair.rejected)
    ]


def test_facts_and_limits_come_from_the_folder(model: RewardModel):
    assert model.facts["mean"] == 1.0
    assert model.max_tokens == 512
    assert model.policy.layout == "shared"
    assert not any(p.requires_grad for p in model.policy.model.parameters())


def test_transformers_alone_gives_the_same_score(folder: Path, model: RewardModel, sequences):
    body = AutoModel.from_pretrained(folder).eval()
    head = load_file(folder / "head.safetensors")
    for sequence, score in zip(sequences, last_scores(model.policy, sequences), strict=True):
        with torch.no_grad():
            state = body(torch.tensor([sequence.tokens])).last_hidden_state[0, -1]
        assert score == pytest.approx((state @ head["linear.weight"][0] + head["linear.bias"][0]).item(), abs=2e-5)


@pytest.mark.parametrize("budgets", [(64, 64), (512, 8192), (40, 4096)])
def test_batches_do_not_change_scores(model: RewardModel, sequences, budgets: tuple[int, int]):
    alone = [last_scores(model.policy, [sequence])[0] for sequence in sequences]
    together = head_outputs(model.policy, sequences, row_tokens=budgets[0], batch_tokens=budgets[1])
    assert [output[-1].item() for output in together] == pytest.approx(alone, abs=2e-5)
    assert last_scores(model.policy, sequences[::-1]) == pytest.approx(alone[::-1], abs=2e-5)


def test_steps_have_the_scores_of_the_texts_that_end_there(folder: Path, model: RewardModel):
    """The head read at a step's end gives what it gives to the text cut there: nothing later is seen."""
    template = PlainTemplate(model.tokenizer, prompt=PROMPT)
    pair = arithmetic_preferences(num=1, min_level=3, max_level=3)[0]
    sequence = step_ends("a", pair.messages, pair.chosen, template, rule="comma")
    found = head_outputs(model.policy, [sequence])[0]
    body, head = AutoModel.from_pretrained(folder).eval(), load_file(folder / "head.safetensors")
    ends = [t for t, used in enumerate(sequence.trained) if used]
    assert len(ends) == 3
    for score, end in zip(found.tolist(), ends, strict=True):
        with torch.no_grad():
            state = body(torch.tensor([sequence.tokens[: end + 1]])).last_hidden_state[0, -1]
        assert score == pytest.approx((state @ head["linear.weight"][0] + head["linear.bias"][0]).item(), abs=2e-5)


def test_the_digest_covers_the_head(folder: Path, tmp_path: Path, model: RewardModel):
    assert RewardModel.load(saved(tmp_path / "same", mean=1.0)).digest == model.digest
    assert RewardModel.load(saved(tmp_path / "other", mean=2.0)).digest != model.digest


def test_a_critic_is_no_reward_model(tmp_path: Path):
    with pytest.raises(ModelError, match="critic"):
        RewardModel.load(saved(tmp_path / "critic", "value"))


def test_a_model_without_a_head_scores_nothing(model: RewardModel, sequences):
    from lydian.models.policy import Policy

    with pytest.raises(ModelError, match="without a head"):
        head_outputs(Policy(model.policy.model), sequences)
