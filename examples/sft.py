"""Supervised fine-tuning in one flat file: the algorithm's specification in plain torch and transformers.

    loss = − Σ_i Σ_t log π(y_it | x_i, y_i<t) / Σ_i |y_i|        x prompt, y reply with its stop token

One mean over all reply tokens of the step, not a mean of the rows' means. AdamW, cosine schedule with warm-up. Equal to
the library's row `sft`, loss by loss and weight by weight: tests/examples/test_sft.py.

    python examples/sft.py        trains the bundled tiny model on worked solutions
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lydian.data.arithmetic import arithmetic_solutions
from lydian.models.load import load_model
from lydian.text.template import make_template

Ids = tuple[int, ...]
Row = tuple[Ids, Ids]
"""A prompt and the reply to it."""


def token_logprobs(model: nn.Module, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """log π of every token but the first, given those before it, and which are a reply's; [rows, length − 1]."""
    tokens = pad_sequence([torch.tensor(x + y) for x, y in rows], batch_first=True)  # filled up on the right
    attended = pad_sequence([torch.ones(len(x + y), dtype=int) for x, y in rows], batch_first=True)
    is_reply = pad_sequence([torch.tensor([False] * len(x) + [True] * len(y)) for x, y in rows], batch_first=True)
    logits = model(input_ids=tokens, attention_mask=attended).logits[:, :-1]  # the logits at t predict token t + 1
    targets = tokens[:, 1:]
    logprobs = logits.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    return logprobs, is_reply[:, 1:]


def learning_rate(progress: float, peak: float, warmup_share: float = 0.03) -> float:
    """Linear rise over the warm-up, then half a cosine down to zero; `progress` in [0, 1]."""
    if progress < warmup_share:
        return peak * progress / warmup_share
    return peak * 0.5 * (1 + math.cos(math.pi * (progress - warmup_share) / (1 - warmup_share)))


def train(model: nn.Module, batches: Sequence[Sequence[Row]], *, peak_rate: float) -> Iterator[dict[str, float]]:
    """One optimiser step a batch, in place; yields the metrics of each."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak_rate, betas=(0.9, 0.95), weight_decay=0.0)
    for step, batch in enumerate(batches):
        logprobs, is_reply = token_logprobs(model, batch)
        num_tokens = is_reply.sum()
        loss = -(logprobs * is_reply).sum() / num_tokens
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.param_groups[0]["lr"] = learning_rate((step + 0.5) / len(batches), peak_rate)
        optimiser.step()
        optimiser.zero_grad()
        yield {"loss": loss.item(), "gradient_norm": norm.item()}


def main() -> None:
    """Trains the tiny model and prints the loss, also on solutions that it never saw."""
    loaded = load_model("tiny")
    template = make_template("plain", loaded.tokenizer, prompt="{question}\nSteps:")

    def rows_of(split: str, num: int) -> list[Row]:
        rows = []
        for conversation in arithmetic_solutions(num=num, split=split):
            prompt = template.encode_prompt(conversation.messages[:-1])
            rows.append((prompt, template.encode_conversation(conversation.messages).tokens[len(prompt) :]))
        return rows

    def heldout_loss() -> float:
        with torch.no_grad():
            logprobs, is_reply = token_logprobs(loaded.model, heldout)
        return -logprobs[is_reply].mean().item()

    rows, heldout = rows_of("train", 256), rows_of("heldout", 64)
    batches = [rows[start : start + 16] for start in range(0, len(rows), 16)]
    print(f"held-out loss before: {heldout_loss():.4f} nats a token")
    for step, metrics in enumerate(train(loaded.model, batches, peak_rate=1e-4)):
        print(f"step {step:2}: loss {metrics['loss']:.4f}, gradient norm {metrics['gradient_norm']:.2f}")
    print(f"held-out loss after: {heldout_loss():.4f} nats a token")


if __name__ == "__main__":
    main()
