"""Direct preference optimisation in one flat file: the specification in plain torch and transformers.

    Δ(y) = Σ_t log π(y_t | x, y_<t) − Σ_t log π_reference(y_t | x, y_<t)            sums over the tokens of a reply
    loss = 1/P Σ_pairs −log σ(β (Δ(chosen) − Δ(rejected)))

The reference is a copy of the weights before the first step, so the loss starts at log 2. AdamW, linear schedule with
warm-up. Equal to the library's row `dpo`, loss by loss and weight by weight: tests/examples/test_dpo.py.

    python examples/dpo.py        teaches the bundled tiny model to prefer right solutions to wrong ones
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lydian.data.arithmetic import arithmetic_preferences
from lydian.models.load import load_model
from lydian.text.encode import encode_preference
from lydian.text.template import make_template

Ids = tuple[int, ...]
Pair = tuple[Ids, Ids, Ids]
"""A prompt, the chosen and the rejected reply."""


def reply_logprobs(model: nn.Module, rows: Sequence[tuple[Ids, Ids]]) -> Tensor:
    """log π of each whole reply given its prompt, Σ_t log π(y_t | x, y_<t); [rows]."""
    tokens = pad_sequence([torch.tensor(x + y) for x, y in rows], batch_first=True)  # filled up on the right
    attended = pad_sequence([torch.ones(len(x + y), dtype=int) for x, y in rows], batch_first=True)
    is_reply = pad_sequence([torch.tensor([False] * len(x) + [True] * len(y)) for x, y in rows], batch_first=True)
    logits = model(input_ids=tokens, attention_mask=attended).logits[:, :-1]  # the logits at t predict token t + 1
    targets = tokens[:, 1:]
    logprobs = logits.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    return (logprobs * is_reply[:, 1:]).sum(1)


def margins(model: nn.Module, pairs: Sequence[Pair]) -> Tensor:
    """log π(chosen | x) − log π(rejected | x); [pairs]."""
    chosen, rejected = ([(pair[0], pair[side]) for pair in pairs] for side in (1, 2))
    return reply_logprobs(model, chosen) - reply_logprobs(model, rejected)


def learning_rate(progress: float, peak: float, warmup_share: float = 0.1) -> float:
    """Linear rise over the warm-up, then linear fall to zero; `progress` in [0, 1]."""
    if progress < warmup_share:
        return peak * progress / warmup_share
    return peak * (1 - progress) / (1 - warmup_share)


def train(
    model: nn.Module, batches: Sequence[Sequence[Pair]], *, peak_rate: float, beta: float = 0.1
) -> Iterator[dict[str, float]]:
    """One optimiser step a batch, in place; yields the metrics of each."""
    reference = copy.deepcopy(model).requires_grad_(False)
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak_rate, betas=(0.9, 0.95), weight_decay=0.0)
    for step, batch in enumerate(batches):
        differences = margins(model, batch) - margins(reference, batch)
        loss = -nn.functional.logsigmoid(beta * differences).sum() / len(batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.param_groups[0]["lr"] = learning_rate((step + 0.5) / len(batches), peak_rate)
        optimiser.step()
        optimiser.zero_grad()
        yield {"loss": loss.item(), "gradient_norm": norm.item()}


def main() -> None:
    """Trains the tiny model and prints the loss, and what became of the margins of pairs that it never saw."""
    loaded = load_model("tiny")
    template = make_template("plain", loaded.tokenizer, prompt="{question}\nSteps:")

    def pairs_of(split: str, num: int) -> list[Pair]:
        pairs = []
        for preference in arithmetic_preferences(num=num, split=split):
            prompt = template.encode_prompt(preference.messages)
            chosen, rejected = encode_preference(preference, template)
            pairs.append((prompt, chosen.tokens[len(prompt) :], rejected.tokens[len(prompt) :]))
        return pairs

    def heldout_margins() -> Tensor:
        with torch.no_grad():
            return margins(loaded.model, heldout)

    pairs, heldout = pairs_of("train", 256), pairs_of("heldout", 64)
    batches = [pairs[start : start + 16] for start in range(0, len(pairs), 16)]
    before = heldout_margins()
    for step, metrics in enumerate(train(loaded.model, batches, peak_rate=1e-4)):
        print(f"step {step:2}: loss {metrics['loss']:.4f}, gradient norm {metrics['gradient_norm']:.2f}")
    print(f"the margin grew on {(heldout_margins() > before).float().mean():.0%} of {len(heldout)} held-out pairs")


if __name__ == "__main__":
    main()
