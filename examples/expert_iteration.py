"""Expert iteration in one flat file: the algorithm's specification in plain torch and transformers.

    each round:   sample completions with the current weights
                  keep the correct ones, each once, at most `keep` of one problem (or easy problems would dominate)
                  imitate them:  loss = − Σ_i Σ_t log π(y_it | x_i, y_i<t) / Σ_i |y_i|     over the rows of a step

One AdamW and one cosine schedule with warm-up over all rounds. Equal to the library's row `expert_iteration`, which
only shuffles a round's rows besides: tests/examples/test_expert_iteration.py.

    python examples/expert_iteration.py       the bundled tiny model learns from its own right solutions
"""

from __future__ import annotations

import math
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
Row = tuple[Ids, Ids]
Group = tuple[Ids, list[Ids], list[float]]
"""A prompt, its completions (with the stop token, where one came), and their rewards, 1 for the correct ones."""
Collect = Callable[[int], list[Group]]


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


def select(groups: Sequence[Group], keep: int) -> list[Row]:
    """The correct completions, each once, the first `keep` of each prompt."""
    rows = []
    for prompt, completions, rewards in groups:
        correct = dict.fromkeys(c for c, reward in zip(completions, rewards, strict=True) if reward == 1)
        rows += [(prompt, completion) for completion in list(correct)[:keep]]
    return rows


def token_logprobs(model: nn.Module, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """log π of every token but the first, given those before it, and which of them were sampled; [rows, length − 1]."""
    tokens = pad_sequence([torch.tensor(x + y) for x, y in rows], batch_first=True)  # filled up on the right
    attended = pad_sequence([torch.ones(len(x + y), dtype=int) for x, y in rows], batch_first=True)
    is_sampled = pad_sequence([torch.tensor([False] * len(x) + [True] * len(y)) for x, y in rows], batch_first=True)
    logits = model(input_ids=tokens, attention_mask=attended).logits[:, :-1]  # the logits at t predict token t + 1
    targets = tokens[:, 1:]
    return logits.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1), is_sampled[:, 1:]


def learning_rate(progress: float, peak: float, warmup_share: float = 0.03) -> float:
    """Linear rise over the warm-up, then half a cosine down to zero; `progress` in [0, 1]."""
    if progress < warmup_share:
        return peak * progress / warmup_share
    return peak * 0.5 * (1 + math.cos(math.pi * (progress - warmup_share) / (1 - warmup_share)))


def train(
    model: nn.Module, collect: Collect, *, rounds: int, keep: int, batch_size: int, peak_rate: float
) -> Iterator[dict[str, float]]:
    """Trains in place on what `collect(round)` samples with the current weights; yields the metrics of each step."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak_rate, betas=(0.9, 0.95), weight_decay=0.0)
    for round in range(rounds):
        rows = select(collect(round), keep)
        batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
        for index, batch in enumerate(batches):
            logprobs, is_sampled = token_logprobs(model, batch)
            loss = -(logprobs * is_sampled).sum() / is_sampled.sum()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.param_groups[0]["lr"] = learning_rate((round + (index + 0.5) / len(batches)) / rounds, peak_rate)
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
        chosen = problems[128 * round : 128 * (round + 1)]
        prompts = [template.encode_prompt(problem.messages) for problem in chosen]
        sampled = sample(loaded.model, prompts, num_samples=4, max_tokens=40, stop=stop)
        rewards = [[reward(p, c) for c in completions] for p, completions in zip(chosen, sampled, strict=True)]
        print(f"round {round:2}: {sum(map(sum, rewards)):.0f} of 512 samples correct")
        return list(zip(prompts, sampled, rewards, strict=True))

    for metrics in train(loaded.model, collect, rounds=4, keep=2, batch_size=16, peak_rate=1e-4):
        print(f"  loss {metrics['loss']:.4f}, gradient norm {metrics['gradient_norm']:.2f}")


if __name__ == "__main__":
    main()
