"""Distillation in one flat file: the algorithm's specification in plain torch and transformers.

    loss = Σ_i Σ_t D(T(· | x_i, y_i<t), S(· | x_i, y_i<t)) / Σ_i |y_i|       T teacher, S student, x prompt, y reply

D is the forward KL(T ‖ S) or the reverse KL(S ‖ T) over the whole vocabulary. One mean over all reply tokens of the
step; the teacher is frozen. AdamW, cosine schedule with warm-up. Equal to the library's rows `distil` and
`distil_reverse`, loss by loss and weight by weight: tests/examples/test_distillation.py.

    python examples/distillation.py        the bundled tiny model teaches a spoilt copy of itself
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


def reply_logprobs(model: nn.Module, rows: Sequence[Row]) -> Tensor:
    """log π of every token of the vocabulary where a reply token is predicted, [reply tokens, vocabulary]."""
    tokens = pad_sequence([torch.tensor(x + y) for x, y in rows], batch_first=True)  # filled up on the right
    attended = pad_sequence([torch.ones(len(x + y), dtype=int) for x, y in rows], batch_first=True)
    is_reply = pad_sequence([torch.tensor([False] * len(x) + [True] * len(y)) for x, y in rows], batch_first=True)
    logits = model(input_ids=tokens, attention_mask=attended).logits[:, :-1]  # the logits at t predict token t + 1
    return logits[is_reply[:, 1:]].log_softmax(-1)


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher ‖ student) at each token: covers everything the teacher may say."""
    return (teacher.exp() * (teacher - student)).sum(-1)


def reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(student ‖ teacher) at each token: keeps to what the teacher finds likely."""
    return (student.exp() * (student - teacher)).sum(-1)


def learning_rate(progress: float, peak: float, warmup_share: float = 0.03) -> float:
    """Linear rise over the warm-up, then half a cosine down to zero; `progress` in [0, 1]."""
    if progress < warmup_share:
        return peak * progress / warmup_share
    return peak * 0.5 * (1 + math.cos(math.pi * (progress - warmup_share) / (1 - warmup_share)))


def train(
    student: nn.Module, teacher: nn.Module, batches: Sequence[Sequence[Row]], *, divergence=forward_kl, peak_rate: float
) -> Iterator[dict[str, float]]:
    """One optimiser step a batch, in place; yields the metrics of each."""
    optimiser = torch.optim.AdamW(student.parameters(), lr=peak_rate, betas=(0.9, 0.95), weight_decay=0.0)
    for step, batch in enumerate(batches):
        with torch.no_grad():
            taught = reply_logprobs(teacher, batch)
        loss = divergence(reply_logprobs(student, batch), taught).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimiser.param_groups[0]["lr"] = learning_rate((step + 0.5) / len(batches), peak_rate)
        optimiser.step()
        optimiser.zero_grad()
        yield {"loss": loss.item(), "gradient_norm": norm.item()}


def main() -> None:
    """Spoils a copy of the tiny model with noise, and prints how it comes back to the original."""
    loaded, teacher = load_model("tiny"), load_model("tiny").model
    student = loaded.model
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in student.parameters():
            if parameter.ndim == 2:
                parameter += 0.5 * parameter.std() * torch.randn_like(parameter)
    template = make_template("plain", loaded.tokenizer, prompt="{question}\nSteps:")

    def rows_of(split: str, num: int) -> list[Row]:
        rows = []
        for conversation in arithmetic_solutions(num=num, split=split):
            prompt = template.encode_prompt(conversation.messages[:-1])
            rows.append((prompt, template.encode_conversation(conversation.messages).tokens[len(prompt) :]))
        return rows

    def heldout_kl() -> float:
        with torch.no_grad():
            return forward_kl(reply_logprobs(student, heldout), reply_logprobs(teacher, heldout)).mean().item()

    rows, heldout = rows_of("train", 192), rows_of("heldout", 32)
    batches = [rows[start : start + 16] for start in range(0, len(rows), 16)]
    print(f"held-out KL(teacher ‖ student) before: {heldout_kl():.4f} nats a token")
    for step, metrics in enumerate(train(student, teacher, batches, peak_rate=1e-3)):
        print(f"step {step:2}: loss {metrics['loss']:.4f}, gradient norm {metrics['gradient_norm']:.2f}")
    print(f"held-out KL(teacher ‖ student) after: {heldout_kl():.4f} nats a token")


if __name__ == "__main__":
    main()
