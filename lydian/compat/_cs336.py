"""What both years of Stanford CS336's assignment 5 ask for in the same words."""

from __future__ import annotations

import os
from collections.abc import Sequence as Seq
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lydian.data.sources import open_source
from lydian.data.trajectory import Finish
from lydian.errors import DataError, InputError, LydianError
from lydian.objectives.preference import dpo
from lydian.text.tokenizer import Codec, Tokenized, eos_tokens
from lydian.verifiers.choice import Choice
from lydian.verifiers.numbers import find_numbers
from lydian.verifiers.verifier import bare_problem

ALPACA_PROMPT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n{response}"
)
"""Stanford Alpaca's prompt without input (tatsu-lab/stanford_alpaca, Apache 2.0), no line break after the response."""


def tokenize_prompt_and_output(prompt_strs: Seq[str], output_strs: Seq[str], tokenizer: Any) -> dict[str, Tensor]:
    """Prompts and outputs as ids: encoded apart, joined, padded on the right, then shifted by one.

    prompt_strs  [B] texts; no special token is added to them
    output_strs  [B] texts, likewise
    tokenizer    a transformers tokenizer with a padding token

    Returns input_ids and labels, int64 [B, L − 1] with L the longest prompt and output together, and response_mask,
    bool [B, L − 1], true where the label is a token of the output. The cut comes after the padding, so a shorter row
    keeps its last token among the inputs; padding stands in the labels as the padding id.
    """
    if len(prompt_strs) != len(output_strs) or not prompt_strs:
        raise InputError(
            where="tokenize_prompt_and_output",
            given=f"{len(prompt_strs)} prompts and {len(output_strs)} outputs",
            expected="as many outputs as prompts, at least one",
            fix="Repeat each prompt once for every output sampled from it.",
        )
    if tokenizer.pad_token_id is None:
        raise InputError(
            where="tokenize_prompt_and_output",
            given="a tokenizer without a padding token",
            expected="one to fill short rows with",
            fix="Set it: tokenizer.pad_token = tokenizer.eos_token.",
        )
    codec = _codec(tokenizer)
    prompts, outputs = ([_ids(codec, text) for text in texts] for texts in (prompt_strs, output_strs))
    length = max(len(p) + len(o) for p, o in zip(prompts, outputs, strict=True))
    ids = torch.full((len(prompts), length), tokenizer.pad_token_id)
    is_output = torch.zeros((len(prompts), length), dtype=torch.bool)
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        end = len(prompt) + len(output)
        ids[row, :end] = torch.tensor(prompt + output)
        is_output[row, len(prompt) : end] = True
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "response_mask": is_output[:, 1:]}


def compute_entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of softmax(logits) over the last dimension: logits [B, T, V] give [B, T].

    >>> round(compute_entropy(torch.zeros(1, 1, 4)).item(), 4)
    1.3863
    """
    return _entropy(_log_softmax(logits))


def get_response_log_probs(
    model: torch.nn.Module, input_ids: Tensor, labels: Tensor, return_token_entropy: bool = False
) -> dict[str, Tensor]:
    """log π(label) at every position, nothing masked and nothing shifted; gradients reach the model.

    model      returns an object with `logits` [B, T, V] when called with input_ids
    input_ids  [B, T]
    labels     [B, T] the token that follows each input token

    Returns log_probs [B, T] and, if asked for, token_entropy [B, T], in nats.
    """
    log_probs = _log_softmax(model(input_ids).logits)
    result = {"log_probs": log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)}
    return result | {"token_entropy": _entropy(log_probs)} if return_token_entropy else result


class PackedDataset(Dataset[dict[str, Tensor]]):
    """Documents joined and cut into examples of seq_length tokens; see `get_packed_sft_dataset`."""

    def __init__(self, tokenizer: Any, dataset_path: str | os.PathLike[str], seq_length: int, shuffle: bool) -> None:
        codec, end = _codec(tokenizer), _end_of_text(tokenizer)
        documents = [
            (*codec.encode(ALPACA_PROMPT.format(instruction=p, response=r)).ids, end) for p, r in _pairs(dataset_path)
        ]
        order = torch.randperm(len(documents)).tolist() if shuffle else range(len(documents))
        self.seq_length = seq_length
        self.tokens = torch.tensor([token for k in order for token in documents[k]])

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq_length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = range(len(self))[index] * self.seq_length  # IndexError past the end: iteration ends there
        window = self.tokens[start : start + self.seq_length + 1]
        return {"input_ids": window[:-1], "labels": window[1:]}


def get_packed_sft_dataset(
    tokenizer: Any, dataset_path: str | os.PathLike[str], seq_length: int, shuffle: bool
) -> PackedDataset:
    """Instruction data as examples of one length, documents joined end to end.

    tokenizer     a transformers tokenizer; it puts its BOS before each document if it has that habit, and its EOS
                  follows each
    dataset_path  JSON lines with prompt and response (also .gz), set into Alpaca's template
    seq_length    m, tokens an example
    shuffle       shuffle the documents (torch's global generator) before they are joined

    Of N tokens, example i has input_ids i·m … (i+1)·m − 1 and as labels the same one later, int64 [m]; prompts are
    trained on too. There are (N − 1) // m examples; the rest is left out.
    """
    return PackedDataset(tokenizer, dataset_path, seq_length, shuffle)


def iterate_batches(
    dataset: Dataset[dict[str, Tensor]], batch_size: int, shuffle: bool
) -> DataLoader[dict[str, Tensor]]:
    """One epoch of batches, dictionaries of [batch_size, m]; the last may be smaller."""
    return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle)


def parse_mmlu_response(mmlu_example: dict[str, Any], model_output: str) -> str | None:
    """The letter A to D that the output chooses, read as by the `choice` verifier; None if it chooses none or several.

    mmlu_example  subject, question, options, answer (not used)

    >>> parse_mmlu_response({}, "The correct answer is B. Viruses vary.")
    'B'
    """
    return _choice().verify(bare_problem("A"), model_output, Finish.STOP).extracted


def parse_gsm8k_response(model_output: str) -> str | None:
    """The last number of the output as text, without currency and percent signs or thousands separators; else None.

    How numbers are written is said in `lydian.verifiers.numbers`: digits in words and times of day are none.

    >>> parse_gsm8k_response("48 / 2 = 24 in May, so she sold 48 + 24 = 72 clips.")
    '72'
    """
    numbers = [number for number in find_numbers(model_output) if number.value is not None]
    return numbers[-1].text.removesuffix("%") if numbers else None


def compute_per_instance_dpo_loss(
    lm: torch.nn.Module,
    lm_ref: torch.nn.Module,
    tokenizer: Any,
    beta: float,
    prompt: str,
    response_chosen: str,
    response_rejected: str,
) -> Tensor:
    """DPO's loss of one pair, −log σ(β (Δ_chosen − Δ_rejected)), a number on lm's device.

    Each reply stands after the prompt in Alpaca's template, with EOS at its end; Δ sums log π − log π_ref over the
    whole text, since the prompt's share cancels. No gradient reaches lm_ref, which may be on another device.
    """
    codec, end = _codec(tokenizer), _end_of_text(tokenizer)
    texts = [ALPACA_PROMPT.format(instruction=prompt, response=r) for r in (response_chosen, response_rejected)]
    tokens = [torch.tensor([(*codec.encode(text).ids, end)]) for text in texts]
    logprobs = torch.cat([_text_logprobs(lm, t) for t in tokens])
    with torch.no_grad():
        reference = torch.cat([_text_logprobs(lm_ref, t) for t in tokens]).to(logprobs.device)
    sequence = torch.tensor([k for k, t in enumerate(tokens) for _ in range(t.shape[1] - 1)], device=logprobs.device)
    is_chosen = logprobs.new_tensor([1.0, 0.0])
    return dpo(logprobs, reference, sequence, torch.zeros_like(is_chosen), is_chosen, beta=beta).loss[0]


def score(reward_fn: Any, responses: Seq[str], ground_truths: Seq[str]) -> dict[str, Tensor]:
    """reward, and format_reward and answer_reward where the function gives them, fp32 [N], in order."""
    if len(responses) != len(ground_truths):
        raise InputError(
            where="rollout_responses",
            given=f"{len(responses)} responses and {len(ground_truths)} ground truths",
            expected="as many of each",
            fix="Repeat each ground truth group_size times.",
        )
    rows = [reward_fn(response, truth) for response, truth in zip(responses, ground_truths, strict=True)]
    names = [name for name in ("reward", "format_reward", "answer_reward") if all(name in row for row in rows)]
    return {name: torch.tensor([float(row[name]) for row in rows]) for name in names}


def group_index(num_rewards: int, group_size: int) -> Tensor:
    """The group of each reward, [N]: consecutive blocks of group_size.

    >>> group_index(4, 2).tolist()
    [0, 0, 1, 1]
    """
    if group_size < 1 or num_rewards % group_size:
        raise InputError(
            where="group_size",
            given=f"{group_size} for {num_rewards} rewards",
            expected="a divisor of the number of rewards",
            fix="Give as many responses to every prompt.",
        )
    return torch.arange(num_rewards) // group_size


def masked_sum(tensor: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum of the entries where the mask is true; what stands elsewhere is not read."""
    return torch.where(mask.bool(), tensor, torch.zeros_like(tensor)).sum(dim)


def require(name: str, value: Any, needed_by: str) -> Any:
    """The value, or InputError where an option needs it and it is None."""
    if value is None:
        raise InputError(where=name, given="None", expected=f"a value: {needed_by} needs it", fix=f"Pass {name}=….")
    return value


def unknown_option(name: str, given: object, known: Seq[str]) -> InputError:
    """The error to raise for an option that does not exist."""
    return InputError(where=name, given=repr(given), expected=f"one of {', '.join(known)}", fix="Choose one of these.")


def _log_softmax(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _entropy(log_probs: Tensor) -> Tensor:
    return -(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(-1)


def _text_logprobs(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    """log π of tokens [1, L] after the first, [L − 1]."""
    tokens = tokens.to(next(model.parameters()).device)
    return get_response_log_probs(model, tokens[:, :-1], tokens[:, 1:])["log_probs"][0]


def _codec(tokenizer: Any) -> Codec:
    return Codec(tokenizer, eos_tokens(tokenizer))


def _ids(codec: Codec, text: str) -> tuple[int, ...]:
    """Ids of a text without any special token added."""
    return codec.append(Tokenized(ids=(), spans=()), text, at=0).ids


def _end_of_text(tokenizer: Any) -> int:
    if tokenizer.eos_token_id is None:
        raise InputError(
            where="tokenizer",
            given="one without EOS",
            expected="a token that ends a document",
            fix="Set tokenizer.eos_token.",
        )
    return int(tokenizer.eos_token_id)


def _pairs(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    rows = open_source(os.fspath(path), split="", name=None).rows(_stop)
    return [(_text(row.place, row.values, "prompt"), _text(row.place, row.values, "response")) for row in rows]


def _stop(place: str, error: LydianError) -> NoReturn:
    raise error


def _text(place: str, values: Any, column: str) -> str:
    if not isinstance(values.get(column), str):
        raise DataError(
            where=f"{place}, column {column!r}",
            given=repr(values.get(column)),
            expected="text",
            fix='A right row: {"prompt": "Add 2 and 3.", "response": "5"}',
        )
    return str(values[column])


@cache
def _choice() -> Choice:
    return Choice(num_choices=4)
