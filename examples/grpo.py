"""GRPO in one flat file: the algorithm's specification in plain torch and transformers.

    A_i  = (r_i − mean r) / (std r + 1e-6)                     over the G completions of a prompt; std divides by G − 1
    ρ_it = π(y_it | x, y_i<t) / π_proximal(y_it | x, y_i<t)    both at the temperature of the sampling
    loss = 1/S Σ_i 1/|y_i| Σ_t −min(ρ_it A_i, clamp(ρ_it, 1 − ε_low, 1 + ε_high) A_i)

Each of the S completions weighs the same, whatever its length; those without advantage count in S too. The proximal
policy is the one that sampled. AdamW, constant rate. Equal to the library's row `grpo`: tests/examples/test_grpo.py.

    python examples/grpo.py       trains the bundled tiny model on verified reward alone
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from lydian.data.arithmetic import arithmetic_problems
from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.models.load import load_model
from lydian.text.template import make_template
from lydian.verifiers import make_verifier

Ids = tuple[int, ...]
Group = tuple[Ids, list[Ids], list[float]]
"""A prompt, two or more completions (with the stop token, where one came), and their rewards."""
Collect = Callable[[int], list[Group]]

CLIP_LOW = CLIP_HIGH = 0.2


@torch.no_grad()
def sample(model: PreTrainedModel, prompts: list[Ids], num_samples: int, max_tokens: int, stop: int) -> list[list[Ids]]:
    """Completions of each prompt, drawn from the full distribution (generate keeps the top 50 unless told not to)."""
    tokens = pad_sequence([torch.tensor(p) for p in prompts], batch_first=True, padding_side="left")
    attended = pad_sequence([torch.ones(len(p), dtype=int) for p in prompts], batch_first=True, padding_side="left")
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_return_sequences": num_samples}
    settings |= {"max_new_tokens": max_tokens, "eos_token_id": stop, "pad_token_id": stop}
    drawn = model.generate(tokens, attention_mask=attended, **settings)
    replies = [tuple(c[: c.index(stop) + 1] if stop in c else c) for c in drawn[:, tokens.shape[1] :].tolist()]
    return [replies[start : start + num_samples] for start in range(0, len(replies), num_samples)]


def token_logprobs(model: nn.Module, rows: Sequence[tuple[Ids, Ids]], temperature: float) -> tuple[Tensor, Tensor]:
    """log π of every token but the first, given those before it, and which of them were sampled; [rows, length − 1]."""
    tokens = pad_sequence([torch.tensor(x + y) for x, y in rows], batch_first=True)  # filled up on the right
    attended = pad_sequence([torch.ones(len(x + y), dtype=int) for x, y in rows], batch_first=True)
    is_sampled = pad_sequence([torch.tensor([False] * len(x) + [True] * len(y)) for x, y in rows], batch_first=True)
    logits = model(input_ids=tokens, attention_mask=attended).logits[:, :-1]  # the logits at t predict token t + 1
    targets = tokens[:, 1:]
    logprobs = (logits / temperature).log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    return logprobs, is_sampled[:, 1:]


def advantages(rewards: Sequence[float]) -> Tensor:
    """Rewards of one group, standardised; all zero if they are equal."""
    deviation = torch.tensor(rewards) - sum(rewards) / len(rewards)
    std = (deviation.square().sum() / (len(rewards) - 1)).sqrt()
    return deviation / (std + 1e-6)


def train(
    model: nn.Module, collect: Collect, *, rounds: int, rate: float, temperature: float, epochs: int = 1
) -> Iterator[dict[str, float]]:
    """Trains in place, `epochs` steps on all that `collect(round)` samples with the current weights; yields metrics."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    for round in range(rounds):
        groups = collect(round)
        rows = [(prompt, completion) for prompt, completions, _ in groups for completion in completions]
        advantage = torch.cat([advantages(rewards) for _, _, rewards in groups])[:, None]
        for epoch in range(epochs if advantage.any() else 0):  # without advantages a step would be old momentum only
            logprobs, is_sampled = token_logprobs(model, rows, temperature)
            if epoch == 0:
                proximal = logprobs.detach()
            ratio = (logprobs - proximal).exp()
            token_loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage)
            loss = ((token_loss * is_sampled).sum(1) / is_sampled.sum(1)).sum() / len(rows)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
            yield {"loss": loss.item(), "gradient_norm": norm.item()}


def main() -> None:
    """Trains the tiny model and prints how many samples of each round are correct."""
    torch.manual_seed(0)
    loaded = load_model("tiny")
    template = make_template("plain", loaded.tokenizer, prompt="{question}\nSteps:")
    verifier = make_verifier("gsm8k", marker="####")
    problems = arithmetic_problems(num=1000, split="train", min_level=1, max_level=2)
    stop = loaded.tokenizer.eos_token_id

    def reward(problem: Problem, completion: Ids) -> float:
        finish = Finish.STOP if completion[-1] == stop else Finish.LENGTH
        return verifier.verify(problem, template.decode(completion), finish).score or 0.0

    def collect(round: int) -> list[Group]:
        chosen = problems[16 * round : 16 * (round + 1)]
        prompts = [template.encode_prompt(problem.messages) for problem in chosen]
        sampled = sample(loaded.model, prompts, num_samples=8, max_tokens=40, stop=stop)
        rewards = [[reward(p, c) for c in completions] for p, completions in zip(chosen, sampled, strict=True)]
        print(f"round {round:2}: {sum(map(sum, rewards)):.0f} of 128 samples correct")
        return list(zip(prompts, sampled, rewards, strict=True))

    for metrics in train(loaded.model, collect, rounds=16, rate=1e-4, temperature=1.0):
        print(f"          gradient norm {metrics['gradient_norm']:.3f}")


if __name__ == "__main__":
    main()
