"""CS336 assignment 5 of 2026: losses by hand, and the train step against a plain loop on a GPT-2 of width 8."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lydian.compat import cs336_2025
from lydian.compat import cs336_2026 as course
from lydian.errors import InputError
from tests.compat.toys import WORDS, gpt2, tokenizer


def test_rollout_rewards_keep_their_order():
    def reward_fn(response: str, truth: str) -> dict[str, float]:
        return {"reward": float(response + truth), "format_reward": 1.0, "answer_reward": 0.5}

    rewards, statistics = course.compute_rollout_rewards(reward_fn, ["1", "2"], ["0", "5"])
    assert rewards.tolist() == [10.0, 25.0]
    assert statistics == {"mean_reward": 17.5, "mean_format_reward": 1.0, "mean_answer_reward": 0.5}


@pytest.mark.parametrize(
    ("baseline", "normalizer", "wanted"),
    [
        ("mean", "std", [0.5**0.5, -(0.5**0.5), 0.0, 0.0]),
        ("mean", "none", [0.5, -0.5, 0.0, 0.0]),
        ("mean", "mean", [1.0, -1.0, 0.0, 0.0]),
        ("none", "none", [1.0, 0.0, 1.0, 1.0]),
        ("none", "mean", [2.0, 0.0, 1.0, 1.0]),
        ("none", "std", [2**0.5, 0.0, 1e6, 1e6]),
    ],
)
def test_group_advantages_by_hand(baseline: Any, normalizer: Any, wanted: list[float]):
    """Groups (1, 0) and (1, 1): means ½ and 1, sample standard deviations √½ and 0 (so 1/ε without a baseline)."""
    got, _ = course.compute_group_normalized_rewards(
        torch.tensor([1.0, 0.0, 1.0, 1.0]), 2, baseline, advantage_normalizer=normalizer
    )
    torch.testing.assert_close(got, torch.tensor(wanted), rtol=1e-5, atol=1e-5)


def test_unsolved_groups_stay_finite():
    for normalizer in ("std", "none", "mean"):
        got, _ = course.compute_group_normalized_rewards(torch.zeros(4), 2, advantage_normalizer=normalizer)
        assert got.tolist() == [0.0] * 4


LOG_PROBS = torch.tensor([[2.0, 0.5, 4.0]]).log()
OLD = torch.zeros(1, 3)


@pytest.mark.parametrize(
    ("method", "advantage", "wanted"),
    [
        ("none", 1.0, [-math.log(2), math.log(2), -math.log(4)]),
        ("noclip", 1.0, [-2.0, -0.5, -4.0]),
        ("noclip", -1.0, [2.0, 0.5, 4.0]),
        ("grpo", 1.0, [-1.1, -0.5, -1.1]),
        ("grpo", -1.0, [2.0, 0.9, 4.0]),
        ("gspo", 1.0, [-1.1, -1.1, -1.1]),
        ("gspo", -1.0, [8**0.5] * 3),
    ],
)
def test_losses_by_hand(method: Any, advantage: float, wanted: list[float]):
    """Ratios 2, ½, 4; range 1 ± .1. GSPO over the first and last token: exp((ln 2 + ln 4)/2) = √8, at every place."""
    mask = torch.tensor([[1, 0, 1]])
    for shape in ((1,), (1, 1)):
        loss, _ = course.compute_policy_gradient_loss(torch.full(shape, advantage), LOG_PROBS, method, OLD, 0.1, mask)
        torch.testing.assert_close(loss, torch.tensor([wanted]))


def test_losses_name_what_they_need():
    one = torch.ones(1)
    for method, given, missing in (
        ("noclip", {}, "old_log_probs"),
        ("grpo", {"old_log_probs": OLD}, "cliprange"),
        ("gspo", {"old_log_probs": OLD, "cliprange": 0.1}, "response_mask"),
        ("ppo", {}, "importance_reweighting_method"),
    ):
        with pytest.raises(InputError, match=missing):
            course.compute_policy_gradient_loss(one, LOG_PROBS, method, **given)


def test_aggregation_by_hand():
    """Rows (2, 4) and (3): means 3 and 3, sum 9; an empty row adds 0 to the sum and 1 to the count."""
    loss = torch.tensor([[2.0, 4.0, math.nan], [3.0, 9.0, 12.0], [5.0, 5.0, 5.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    assert course.aggregate_loss_across_microbatch(loss[:2], mask[:2]).item() == 3.0
    assert course.aggregate_loss_across_microbatch(loss, mask, "sequence").item() == 2.0
    assert course.aggregate_loss_across_microbatch(loss, mask, "constant", 4).item() == 2.25
    with pytest.raises(InputError, match="normalization_constant"):
        course.aggregate_loss_across_microbatch(loss, mask, "constant")
    with pytest.raises(InputError, match="sequence, constant"):
        course.aggregate_loss_across_microbatch(loss, mask, "token")


PROMPTS = ["a b", "a b", "a b", "a b", "c", "c", "c", "c"]
RESPONSES = ["d", "e f g", "h h", "a c e g", "b", "d d d", "f g", "h a"]
REWARDS = dict(zip(RESPONSES, [1.0, 0.0, 0.25, 0.0, 1.0, 1.0, 0.5, 0.0], strict=True))
GROUP = 4
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "grpo constant": {"loss_normalization": "constant", "normalization_constant": 32},
    "dr grpo": {"advantage_normalizer": "none", "loss_normalization": "constant", "normalization_constant": 32},
    "rft": {
        "baseline": "none",
        "advantage_normalizer": "none",
        "loss_normalization": "constant",
        "normalization_constant": 32,
    },
    "maxrl": {"advantage_normalizer": "mean", "loss_normalization": "constant", "normalization_constant": 32},
    "off-policy, no clip": {"importance_reweighting_method": "noclip"},
    "off-policy, grpo": {"importance_reweighting_method": "grpo", "cliprange": 0.1},
    "off-policy, gspo": {"importance_reweighting_method": "gspo", "cliprange": 0.1},
}


def reward_fn(response: str, truth: str) -> dict[str, float]:
    return {"reward": REWARDS[response], "format_reward": 1.0, "answer_reward": REWARDS[response]}


def old_log_probs() -> Tensor:
    """Log-probabilities of another policy, as padded by the course's function."""
    batch = course.tokenize_prompt_and_output(PROMPTS, RESPONSES, tokenizer())
    with torch.no_grad():
        return course.get_response_log_probs(gpt2(1), batch["input_ids"], batch["labels"])["log_probs"]


def train(model: torch.nn.Module, steps: int, max_grad_norm: float | None, options: dict[str, Any]) -> Any:
    if "importance_reweighting_method" in options:
        options = options | {"old_log_probs": old_log_probs()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return course.grpo_train_step(
        model=model,
        tokenizer=tokenizer(),
        optimizer=optimizer,
        gradient_accumulation_steps=steps,
        max_grad_norm=max_grad_norm,
        reward_fn=reward_fn,
        repeated_prompts=PROMPTS,
        rollout_responses=RESPONSES,
        repeated_ground_truths=[""] * 8,
        group_size=GROUP,
        **options,
    )


def plain_advantages(options: dict[str, Any]) -> list[float]:
    advantages = []
    for start in range(0, 8, GROUP):
        group = [REWARDS[response] for response in RESPONSES[start : start + GROUP]]
        mean = sum(group) / GROUP
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / (GROUP - 1))
        scale = {"std": std + 1e-6, "mean": mean + 1e-6, "none": 1.0}[options.get("advantage_normalizer", "std")]
        advantages += [(r - mean * (options.get("baseline", "mean") == "mean")) / scale for r in group]
    return advantages


def plain_loss(model: torch.nn.Module, options: dict[str, Any]) -> Tensor:
    """The step's loss one response at a time: no padding, no masks, no micro-batches."""
    total = torch.zeros(())
    for k, advantage in enumerate(plain_advantages(options)):
        prompt = [WORDS.index(word) for word in PROMPTS[k].split()]
        answer = [WORDS.index(word) for word in RESPONSES[k].split()]
        log_probs = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        at = [log_probs[len(prompt) - 1 + t, token] for t, token in enumerate(answer)]
        old = old_log_probs()[k, len(prompt) - 1 :].tolist()
        ratios = [torch.exp(new - old[t]) for t, new in enumerate(at)]
        method, bound = options.get("importance_reweighting_method", "none"), options.get("cliprange", 0.0)
        if method == "gspo":
            ratios = [torch.exp(sum(new - old[t] for t, new in enumerate(at)) / len(at))] * len(at)
        clipped = [torch.clamp(r, 1 - bound, 1 + bound) for r in ratios]
        if method == "none":
            losses = [-advantage * new for new in at]
        elif method == "noclip":
            losses = [-advantage * r for r in ratios]
        else:
            losses = [-torch.minimum(r * advantage, c * advantage) for r, c in zip(ratios, clipped, strict=True)]
        if "normalization_constant" in options:
            total = total + sum(losses) / options["normalization_constant"]
        else:
            total = total + sum(losses) / len(losses) / 8
    return total


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_train_step_equals_a_plain_loop(name: str, steps: int):
    """All parameters after one step, to 1e-6; gradients clipped to .5 here by hand; .grad is None afterwards.

    Padding, masks and micro-batches must change nothing. SGD, not Adam: a bias on attention keys has gradient 0 but for
    rounding, and Adam's first step would blow the rounding up."""
    options, model = VARIANTS[name], gpt2()
    plain = copy.deepcopy(model)
    loss, statistics = train(model, steps, 0.5, options)

    wanted = plain_loss(plain, options)
    wanted.backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in plain.parameters()))
    assert norm > 0.5, "the clip must be seen to work"
    for parameter in plain.parameters():
        parameter.grad *= 0.5 / norm
    torch.optim.SGD(plain.parameters(), lr=0.1).step()

    assert loss.shape == () and loss.item() == pytest.approx(wanted.item(), abs=1e-5, rel=1e-5)
    assert statistics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    for got, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
        assert got.grad is None


def test_gradients_of_earlier_steps_do_not_leak_in():
    one, other = gpt2(), gpt2()
    for parameter in other.parameters():
        parameter.grad = torch.ones_like(parameter)
    train(one, 2, None, {})
    train(other, 2, None, {})
    for got, expected in zip(other.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


class Counting(torch.nn.Module):
    """A GPT-2 that notes the size of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = gpt2()
        self.sizes: list[int] = []

    def forward(self, input_ids: Tensor) -> Any:
        self.sizes.append(len(input_ids))
        return self.inner(input_ids)


def test_responses_of_advantage_zero_are_not_computed():
    """Rewards 1 0 ¼ 0 | 1 1 ½ 0 are the advantages: 2 and 3 of the two micro-batches of 4 are not 0."""
    model = Counting()
    train(model, 2, None, VARIANTS["rft"])
    assert model.sizes == [2, 3]


def test_a_step_without_signal_changes_nothing():
    model = gpt2()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    loss, statistics = course.grpo_train_step(
        model, tokenizer(), optimizer, 2, 1.0, lambda *_: {"reward": 1.0}, PROMPTS, RESPONSES, ["x"] * 8, GROUP
    )
    assert loss.item() == 0 and statistics["grad_norm"] == 0 and statistics["share_zero_advantage"] == 1
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_statistics_are_means_over_response_tokens():
    """Entropies of all 8 responses by hand; the clipped shares lie in [0, 1]."""
    model = gpt2()
    total, count = 0.0, 0
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        first, tokens = len(prompt.split()), [WORDS.index(word) for word in f"{prompt} {response}".split()]
        p = model(torch.tensor([tokens])).logits[0].softmax(-1)[first - 1 : -1]
        total, count = total - (p * p.log()).sum().item(), count + len(p)
    _, statistics = train(model, 4, None, VARIANTS["off-policy, grpo"])
    assert statistics["token_entropy"] == pytest.approx(total / count, rel=1e-4)
    assert statistics["mean_reward"] == pytest.approx(3.75 / 8)
    assert 0 < statistics["clipped_low"] + statistics["clipped_high"] <= 1


def test_micro_batches_must_divide_the_batch():
    with pytest.raises(InputError, match="3 for 8 responses"):
        train(gpt2(), 3, None, {})


def test_the_years_are_kept_apart():
    """Two names have other signatures; the rest of what both have is one function."""
    both = set(course.__all__) & set(cs336_2025.__all__)
    apart = {name for name in both if getattr(course, name) is not getattr(cs336_2025, name)}
    assert apart == {"compute_group_normalized_rewards", "compute_policy_gradient_loss"}
    for name in course.__all__:
        if name not in ("get_packed_sft_dataset", "r1_zero_reward_fn", "question_only_reward_fn"):
            assert getattr(course, f"run_{name}") is getattr(course, name)
