"""CS336 assignment 5 of 2025: what its tests and handout state in numbers, and numbers worked by hand."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lydian.compat import cs336_2025 as course
from lydian.errors import DataError, InputError
from tests.compat.toys import BOS, EOS, PAD, FixedLogits, gpt2, ids, tokenizer


def draw(*size: int) -> Tensor:
    torch.manual_seed(42)
    return torch.randn(size)


def test_prompt_and_output_are_tokenised_apart_and_shifted():
    """Rows a b|d e and c|f, padded to 4 and cut to 3. "bd" joined would be an unknown word: it is not joined."""
    batch = course.tokenize_prompt_and_output(["a b", "c"], ["d e", "f"], tokenizer(adds_bos=True))
    a, b, c, d, e, f = ids("a b c d e f")
    assert batch.keys() == {"input_ids", "labels", "response_mask"}
    assert batch["input_ids"].tolist() == [[a, b, d], [c, f, PAD]]
    assert batch["labels"].tolist() == [[b, d, e], [f, PAD, PAD]]
    assert batch["response_mask"].tolist() == [[False, True, True], [True, False, False]]
    assert batch["input_ids"].dtype == torch.int64


def test_tokenising_refuses_what_it_cannot_pad_or_match():
    plain = tokenizer()
    with pytest.raises(InputError, match="1 prompts and 2 outputs"):
        course.tokenize_prompt_and_output(["a"], ["b", "c"], plain)
    plain.pad_token = None
    with pytest.raises(InputError, match="padding token"):
        course.tokenize_prompt_and_output(["a"], ["b"], plain)


def test_entropy_by_hand():
    """(3/4, 1/4): ¾ ln(4/3) + ¼ ln 4 = .5623; equal logits of 1000: ln 4; certainty, also by −inf: 0."""
    logits = torch.tensor([[[math.log(3), 0.0], [0.0, -math.inf]]])
    torch.testing.assert_close(course.compute_entropy(logits), torch.tensor([[0.5623, 0.0]]), atol=5e-5, rtol=0)
    assert course.compute_entropy(torch.full((1, 1, 4), 1000.0)).item() == pytest.approx(math.log(4))


def test_log_probs_are_those_of_the_labels_unmasked():
    """softmax(ln 3, 0) = (3/4, 1/4). d log p(y)/d logits = onehot − p."""
    model = FixedLogits(torch.tensor([[[math.log(3), 0.0], [math.log(3), 0.0]]]))
    labels = torch.tensor([[0, 1]])
    got = course.get_response_log_probs(model, torch.zeros(1, 2, dtype=torch.long), labels, return_token_entropy=True)
    assert got.keys() == {"log_probs", "token_entropy"}
    torch.testing.assert_close(got["log_probs"], torch.tensor([[0.75, 0.25]]).log())
    torch.testing.assert_close(got["token_entropy"], torch.full((1, 2), 0.5623), atol=5e-5, rtol=0)
    got["log_probs"].sum().backward()
    torch.testing.assert_close(model.logits.grad, torch.tensor([[[0.25, -0.25], [-0.75, 0.75]]]))
    assert course.get_response_log_probs(model, labels, labels).keys() == {"log_probs"}


def test_length_normalisation_example_of_the_handout():
    """Rows of 4 and 7 tokens, A = 2, constant 7: means 2 and 2, normalised 8/7 and 14/7.

    Gradient of the batch's mean with A = 1 a token: 1/(2·4)·2 = .25 and 1/7 against 1/7 and 1/7, times ½ for two rows
    and 2 for A."""
    mask = torch.tensor([[1] * 4 + [0] * 3, [1] * 7])
    mean_in, sum_in = (torch.full((2, 7), 2.0, requires_grad=True) for _ in range(2))
    means = course.masked_mean(mean_in, mask, dim=1)
    normalised = course.masked_normalize(sum_in, mask, 7.0, dim=1)
    torch.testing.assert_close(means, torch.tensor([2.0, 2.0]))
    torch.testing.assert_close(normalised, torch.tensor([1.1429, 2.0]), atol=5e-5, rtol=0)
    means.sum().backward()
    normalised.sum().backward()
    torch.testing.assert_close(mean_in.grad, torch.tensor([[0.25], [1 / 7]]) * mask)
    torch.testing.assert_close(sum_in.grad, torch.full((2, 7), 1 / 7) * mask)


def test_masked_mean_of_nothing_is_nan():
    """The suite's input: seed 42, [2, 10, 100], mask rand > ½. Along the batch 260 of 1000 places have none."""
    tensor = draw(2, 10, 100)
    torch.manual_seed(42)
    mask = torch.rand_like(tensor) > 0.5
    mean = course.masked_mean(tensor, mask, dim=0)
    assert mean.isnan().sum().item() == 260
    counted = mask.sum(0)
    wanted = (tensor * mask).sum(0)[counted > 0] / counted[counted > 0]
    torch.testing.assert_close(mean[counted > 0], wanted)
    torch.testing.assert_close(course.masked_mean(tensor, mask), tensor[mask].mean())


def test_masked_normalize_has_two_orders_of_arguments():
    """The handout's (tensor, mask, constant, dim) and the adapter's (tensor, mask, dim, constant = 1)."""
    tensor, mask = torch.tensor([[1.0, 2.0], [4.0, 8.0]]), torch.tensor([[1, 0], [1, 1]])
    assert course.masked_normalize(tensor, mask, 2.0).item() == 6.5
    assert course.run_masked_normalize(tensor, mask, 1, 2.0).tolist() == [0.5, 6.0]
    assert course.run_masked_normalize(tensor, mask).item() == 13.0


def test_sft_step_sums_tokens_and_accumulates():
    """B = 2, two accumulation steps: −1/(2·2) = −.25 for each response token, exactly 0 elsewhere.

    Loss: rows −(−1 − 2) = 3 and 4; mean 3.5; halved 1.75. Ten calls add up tenfold and return the same."""
    log_probs = torch.tensor([[-1.0, -2.0, -9.0], [-9.0, -9.0, -4.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [0, 0, 1]])
    losses = [course.sft_microbatch_train_step(log_probs, mask, 2)[0].item() for _ in range(10)]
    assert losses == [1.75] * 10
    torch.testing.assert_close(log_probs.grad, -2.5 * mask, atol=1e-6, rtol=0)
    once = log_probs.detach().clone().requires_grad_()
    course.sft_microbatch_train_step(once, mask, 2, normalize_constant=5.0)
    assert torch.equal(once.grad, torch.where(mask.bool(), torch.tensor(-0.05), torch.tensor(0.0)))


def hashed_reward(response: str, ground_truth: str) -> dict[str, float]:
    reward = int(hashlib.sha256(response.encode()).hexdigest(), 16) % 10 / 10
    return {"reward": reward, "format_reward": reward, "answer_reward": reward}


def test_group_rewards_of_the_suite():
    """Rewards .2 .5 0 .4 and .9 .7 .2 0; means .275 and .45. Squares of the first: .0056 + .0506 + .0756 + .0156 =
    .1475, over 3 a variance of .04917, std .22174: −.075/.22174 = −.3382 (.3906 with the population's)."""
    responses = [f"hmm I think ths answer is {i}" for i in range(8)]
    given = (hashed_reward, responses, ["42"] * 8)
    scaled, raw, _ = course.compute_group_normalized_rewards(*given, 4, 1e-6, normalize_by_std=True)
    torch.testing.assert_close(raw, torch.tensor([0.2, 0.5, 0.0, 0.4, 0.9, 0.7, 0.2, 0.0]))
    centred, _, statistics = course.compute_group_normalized_rewards(*given, 4, 1e-6, normalize_by_std=False)
    wanted = torch.tensor([-0.075, 0.225, -0.275, 0.125, 0.45, 0.25, -0.25, -0.45])
    torch.testing.assert_close(centred, wanted)
    deviation = torch.tensor([math.sqrt(0.1475 / 3)] * 4 + [math.sqrt(0.53 / 3)] * 4)
    torch.testing.assert_close(scaled, wanted / (deviation + 1e-6))
    assert scaled[0].item() == pytest.approx(-0.3382, abs=5e-5)
    assert statistics["mean_reward"] == pytest.approx(2.9 / 8)
    with pytest.raises(InputError, match="3 for 8 rewards"):
        course.compute_group_normalized_rewards(*given, 3, 1e-6, normalize_by_std=True)


def suite_inputs() -> dict[str, Tensor]:
    """The tensors of the course's test_grpo: every draw begins at seed 42."""
    policy = draw(2, 10)
    torch.manual_seed(42)
    rewards = torch.rand(2, 1)
    torch.manual_seed(42)
    mask = torch.rand_like(policy) > 0.5
    old = policy + draw(2, 10)
    return {"policy": policy, "old": old, "rewards": rewards, "advantages": rewards - rewards.mean(0), "mask": mask}


def test_losses_on_the_suites_inputs():
    """Against the formulas, entry by entry, in plain Python."""
    x = suite_inputs()
    losses = {
        name: course.compute_policy_gradient_loss(x["policy"], name, x["rewards"], x["advantages"], x["old"], 0.1)[0]
        for name in ("no_baseline", "reinforce_with_baseline", "grpo_clip", "grpo_no_clip")
    }
    for row in range(2):
        reward, advantage = x["rewards"][row].item(), x["advantages"][row].item()
        for t in range(10):
            new, ratio = x["policy"][row, t].item(), math.exp(x["policy"][row, t].item() - x["old"][row, t].item())
            wanted = {
                "no_baseline": -reward * new,
                "reinforce_with_baseline": -advantage * new,
                "grpo_clip": -min(ratio * advantage, min(max(ratio, 0.9), 1.1) * advantage),
                "grpo_no_clip": -ratio * advantage,
            }
            for name, value in wanted.items():
                assert losses[name][row, t].item() == pytest.approx(value, rel=1e-5, abs=1e-6), (name, row, t)


def test_grpo_step_gives_the_stored_loss():
    """The suite stores 0.00440 for these inputs. A second call doubles the gradient and returns the same."""
    x = suite_inputs()
    policy = x["policy"].requires_grad_()
    step = (policy, x["mask"], 2, "grpo_clip")
    loss, statistics = course.grpo_microbatch_train_step(*step, x["rewards"], x["advantages"], x["old"], 0.1)
    assert loss.shape == () and loss.item() == pytest.approx(0.00440, abs=5e-6)
    assert 0 <= statistics["clipped_low"].item() <= 1
    once = policy.grad.clone()
    again, _ = course.grpo_microbatch_train_step(*step, x["rewards"], x["advantages"], x["old"], 0.1)
    assert again.item() == loss.item()
    torch.testing.assert_close(policy.grad, 2 * once)
    assert (once[~x["mask"]] == 0).all() and (once[x["mask"]] != 0).any()


def test_grpo_step_takes_the_mean_of_means():
    """no_baseline, r = 1: rows of 2 and 1 tokens; −(−1 − 3)/2 = 2 and 4, mean 3, over 3 steps 1."""
    log_probs = torch.tensor([[-1.0, -3.0], [-4.0, -9.0]], requires_grad=True)
    mask = torch.tensor([[1, 1], [1, 0]])
    loss, _ = course.grpo_microbatch_train_step(log_probs, mask, 3, "no_baseline", raw_rewards=torch.ones(2, 1))
    assert loss.item() == pytest.approx(1.0)
    torch.testing.assert_close(log_probs.grad, torch.tensor([[-1 / 12, -1 / 12], [-1 / 6, 0.0]]))


def test_losses_name_what_they_need():
    log_probs = torch.zeros(2, 3)
    with pytest.raises(InputError, match="raw_rewards"):
        course.compute_policy_gradient_loss(log_probs, "no_baseline")
    with pytest.raises(InputError, match="cliprange"):
        course.compute_policy_gradient_loss(
            log_probs, "grpo_clip", advantages=torch.ones(2, 1), old_log_probs=log_probs
        )
    with pytest.raises(InputError, match="no_baseline, reinforce_with_baseline"):
        course.compute_policy_gradient_loss(log_probs, "ppo")


@pytest.fixture
def sft_file(tmp_path: Path) -> Path:
    """Three documents; the template's own words are unknown but for those in `toys.WORDS`."""
    rows = [{"prompt": prompt, "response": response} for prompt, response in (("a", "b c"), ("d", "e"), ("f", "g h"))]
    path = tmp_path / "sft.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def document(prompt: str, response: str) -> list[int]:
    """Alpaca's template filled in, BOS before and EOS after."""
    text = (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        f"### Instruction:\n{prompt}\n\n### Response:\n{response}"
    )
    return [BOS, *tokenizer(keeps_blanks=True)(text)["input_ids"], EOS]


def test_packed_dataset(sft_file: Path):
    """Documents end to end: N tokens give (N − 1) // m examples whose labels are the inputs one later."""
    dataset = course.get_packed_sft_dataset(tokenizer(adds_bos=True, keeps_blanks=True), sft_file, 8, shuffle=False)
    joined = document("a", "b c") + document("d", "e") + document("f", "g h")
    assert len(dataset) == (len(joined) - 1) // 8 > 3
    examples = list(dataset)  # ends only if IndexError is raised past the last
    assert len(examples) == len(dataset)
    for i, example in enumerate(examples):
        assert example["input_ids"].tolist() == joined[8 * i : 8 * i + 8]
        assert example["labels"].tolist() == joined[8 * i + 1 : 8 * i + 9]
        assert example["labels"].dtype == torch.int64
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    assert document("a", "b c")[-4:] == [*ids("b [UNK] c"), EOS]  # nothing between the response and EOS


@pytest.mark.parametrize(("spare", "num_examples"), [(0, 0), (1, 1)])
def test_the_last_example_needs_a_label(sft_file: Path, spare: int, num_examples: int):
    """N tokens hold no example of N tokens, whose last label is missing, and one of N − 1."""
    length = sum(len(document(*pair)) for pair in (("a", "b c"), ("d", "e"), ("f", "g h"))) - spare
    dataset = course.get_packed_sft_dataset(tokenizer(adds_bos=True, keeps_blanks=True), sft_file, length, False)
    assert len(dataset) == num_examples


def test_shuffling_moves_whole_documents(sft_file: Path):
    torch.manual_seed(1)
    shuffled = course.get_packed_sft_dataset(
        tokenizer(adds_bos=True, keeps_blanks=True), sft_file, 8, shuffle=True
    ).tokens.tolist()
    plain = course.get_packed_sft_dataset(
        tokenizer(adds_bos=True, keeps_blanks=True), sft_file, 8, shuffle=False
    ).tokens.tolist()
    assert shuffled != plain and sorted(shuffled) == sorted(plain)
    assert document("d", "e") in [shuffled[i : i + len(document("d", "e"))] for i in range(len(shuffled))]


def test_batches_of_one_epoch(sft_file: Path):
    dataset = course.get_packed_sft_dataset(tokenizer(), sft_file, 8, shuffle=False)
    batches = course.iterate_batches(dataset, 4, shuffle=False)
    assert len(batches) == math.ceil(len(dataset) / 4)
    sizes = [batch["input_ids"].shape for batch in batches]
    assert sizes[0] == (4, 8) and sum(size[0] for size in sizes) == len(dataset)


def test_a_bad_row_is_named(tmp_path: Path):
    (tmp_path / "sft.jsonl").write_text('{"prompt": "a", "response": "b"}\n{"prompt": "a"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"sft.jsonl:2, column 'response'"):
        course.get_packed_sft_dataset(tokenizer(), tmp_path / "sft.jsonl", 8, shuffle=False)


def test_parsing_answers():
    example = {"subject": "virology", "question": "How many?", "options": ["1", "2", "3", "4"], "answer": "B"}
    assert course.parse_mmlu_response(example, "The correct answer is B. There are two.") == "B"
    assert not course.parse_mmlu_response(example, "The correct answer is 10000 polyomaviruses.")
    text = "Natalia sold 48/2 = 24 clips in May. Natalia sold 48+24 = 72 clips altogether in April and May."
    assert course.parse_gsm8k_response(text) == "72"
    assert course.parse_gsm8k_response("She paid $1,250.50 in all.") == "1250.50"
    assert course.parse_gsm8k_response("That is 50% at 12:30.") == "50"
    assert not course.parse_gsm8k_response("Nobody can say.")


def test_dpo_by_token_sums():
    """Against sums over the whole text, computed here; no gradient reaches the reference. Equal models give log 2."""
    lm, reference, words = gpt2(0), gpt2(1), tokenizer(keeps_blanks=True)
    given = {"tokenizer": words, "beta": 0.5, "prompt": "a", "response_chosen": "b c", "response_rejected": "d"}
    loss = course.compute_per_instance_dpo_loss(lm=lm, lm_ref=reference, **given)

    def total(model: torch.nn.Module, response: str) -> float:
        tokens = document("a", response)[1:]
        log_probs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        return sum(log_probs[t, tokens[t + 1]].item() for t in range(len(tokens) - 1))

    margin = 0.5 * (total(lm, "b c") - total(lm, "d") - total(reference, "b c") + total(reference, "d"))
    assert loss.shape == () and loss.item() == pytest.approx(math.log1p(math.exp(-margin)), rel=1e-4)
    loss.backward()
    assert all(p.grad is None for p in reference.parameters()) and any(p.grad is not None for p in lm.parameters())
    assert course.compute_per_instance_dpo_loss(lm=lm, lm_ref=lm, **given).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        *[(a, True) for a in ("72", " $72 ", "72%", "72 apples", "72 hours", "x = 72", "72.0", r"3 \boxed{72} 4")],
        *[(a, False) for a in ("She sold 72", "", "71+1", "144/2", "72 or 73", r"\boxed{7}")],
    ],
)
def test_r1_zero_rewards_as_seen_in_the_courses_grader(answer: str, right: bool):
    response = f"48 + 24 </think> <answer>{answer}</answer>"
    assert course.r1_zero_reward_fn(response, "72") == {"format_reward": 1, "answer_reward": right, "reward": right}


@pytest.mark.parametrize("answer", ["72 dollars", "72 clips"])
def test_any_noun_after_a_number_is_left_out_where_the_course_has_a_list(answer: str):
    """The difference that the module states: the course's grader finds both wrong."""
    assert course.r1_zero_reward_fn(f"48 + 24 </think> <answer>{answer}</answer>", "72")["reward"] == 1


@pytest.mark.parametrize(
    ("response", "rewards"),
    [
        ("</think><answer>72</answer>", (0, 0)),
        ("</think>  <answer>72</answer>", (0, 0)),
        ("</think>\n<answer>72</answer>", (0, 0)),
        ("</think> <answer>72", (0, 0)),
        ("</answer> </think> <answer>72", (1, 1)),
        ("</think> <answer>7</answer> <answer>72</answer>", (1, 1)),
        ("</think> <answer>72</answer> and more", (1, 0)),
        (r"</think> <answer>\boxed{72</answer>", (1, 0)),
        (r"</think> <answer>\boxed 72</answer>", (1, 0)),
    ],
)
def test_r1_zero_layout(response: str, rewards: tuple[int, int]):
    got = course.r1_zero_reward_fn(response, 72)
    assert (got["format_reward"], got["answer_reward"]) == rewards and got["reward"] == got["answer_reward"]


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        ("1,000", "1000", True),
        ("0.25", "1/4", True),
        ("2/4", "1/2", False),
        (r"\frac{2}{4}", r"\frac{1}{2}", False),
        (r"\frac{1}{2}", "1/2", True),
        ("(1, 2)", "(1,2)", True),
        ("[1, 2]", "(1,2)", False),
        ("72", ["7", "72"], True),
        ("72", r"\boxed{72}", True),
        ("72", "48 + 24 = 72 #### 72", False),
        ("0.5", 0.5, True),
    ],
)
def test_question_only_rewards(answer: str, truth: object, right: bool):
    got = course.question_only_reward_fn(rf"It is \boxed{{{answer}}}.", truth)
    assert got == {"format_reward": 1, "answer_reward": right, "reward": right}


@pytest.mark.parametrize("response", ["72", r"\boxed{72", r"\boxed 72", r"\fbox{72}", r"\boxed{72} or \boxed{"])
def test_question_only_needs_a_box(response: str):
    assert set(course.question_only_reward_fn(response, "72").values()) == {0.0}


def test_every_adapter_has_its_name():
    """Under the suite's names with the same arguments; `get_packed_sft_dataset` has no prefix there."""
    for name in course.__all__:
        if name in ("get_packed_sft_dataset", "r1_zero_reward_fn", "question_only_reward_fn"):
            continue
        run = getattr(course, f"run_{name}")
        assert inspect.signature(run).parameters.keys() == inspect.signature(getattr(course, name)).parameters.keys()
