"""Maximum likelihood and its kin.

How much long answers weigh is the normaliser's choice: `token_mean` counts every token the same, `sequence_mean` every
sequence.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lydian.objectives.loss import Loss
from lydian.objectives.precision import constant, finite_logprobs, full_precision


def nll(logprobs: Float[Tensor, " n"]) -> Loss:
    """Negative log-likelihood, −log π(y_t).

    logprobs  [n] log π of each trained token, in nats

    Use: supervised fine-tuning, pretraining, imitation of accepted samples. Trap: a mean of micro-batches' means weighs
    tokens by their micro-batch; here weights are set once over the whole step. Source: Fisher (1922), maximum
    likelihood.

    >>> nll(torch.tensor([-1.0, -0.5])).loss.tolist()
    [1.0, 0.5]
    """
    return Loss(-finite_logprobs(logprobs), {})


def unlikelihood(
    logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    is_desirable: Float[Tensor, " s"],
    *,
    coef: float = 1.0,
) -> Loss:
    """−log π(y_t) of desirable sequences, −c log(1 − π(y_t)) of the others.

    logprobs      [n] log π of each trained token, in nats
    sequence      [n] index of the sequence of each token
    is_desirable  [s] 1 for text to make likely, 0 for text to make unlikely
    coef          c ≥ 0, weight of the second term

    π is held below 1 − 1e-7 there, so that a certain token gives a finite loss. Statistics: unlikelihood, the second
    term without c. Use: repetitions and known bad replies. Trap: it pushes every token of a bad reply down, also those
    that it shares with good ones. Source: Welleck et al. (2019), arXiv:1908.04319, eq. 3.

    >>> ids, desirable = torch.tensor([0, 1]), torch.tensor([1.0, 0.0])
    >>> [round(v, 4) for v in unlikelihood(torch.tensor([-1.0, -1.0]), ids, desirable).loss.tolist()]  # −log(1 − 1/e)
    [1.0, 0.4587]
    """
    logprobs = finite_logprobs(logprobs)
    avoided = -torch.log1p(-logprobs.clamp(max=-1e-7).exp())
    is_likely = is_desirable[sequence] > 0.5
    avoided_share = torch.where(is_likely, torch.zeros_like(avoided), avoided.detach())
    return Loss(torch.where(is_likely, -logprobs, coef * avoided), {"unlikelihood": avoided_share})


def dft(logprobs: Float[Tensor, " n"]) -> Loss:
    """Dynamic fine-tuning, −sg[π(y_t)] log π(y_t): the gradient of −π(y_t), so improbable tokens pull less.

    logprobs  [n] log π of each trained token, in nats

    Statistics: nll, to compare with plain fine-tuning. Use: demonstrations that the model would hardly have written.
    Trap: a token that starts improbable stays so. Its value is not a likelihood: evaluate with `nll`.
    Source: Wu et al. (2025), arXiv:2508.05629, eq. 9.

    >>> round(dft(torch.tensor([0.25]).log()).loss.item(), 4)  # −0.25 · log 0.25
    0.3466
    """
    logprobs = finite_logprobs(logprobs)
    return Loss(-logprobs.detach().exp() * logprobs, {"nll": -logprobs.detach()})


def classification(class_logits: Float[Tensor, "n c"], sequence: Int[Tensor, " n"], label: Float[Tensor, " s"]) -> Loss:
    """Cross-entropy of a class head, −log softmax(z)_label, at the last token of each sequence.

    class_logits  [n, c] output of the head at each site
    sequence      [n] index of the sequence of each site; the only site of a sequence is its last real token
    label         [s] class of each sequence, 0 … c − 1

    Statistics: class_accuracy. Raises ValueError for a label that is no class. Use: fine-tuning as a classifier.
    Trap: the last token is found by the mask, never by comparing with the padding id, which may be the stop token's.
    Source: Radford et al. (2018), "Improving language understanding by generative pre-training", section 3.2.

    >>> classification(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), torch.tensor([1.0])).loss.item()  # log 2
    0.6931
    """
    target = constant(label).long()[sequence]
    if ((constant(label) != constant(label).round()) | (label < 0) | (label >= class_logits.shape[1])).any():
        raise ValueError(f"classification: labels {label.tolist()} must be classes 0 to {class_logits.shape[1] - 1}")
    logprobs = full_precision(class_logits).log_softmax(-1)
    is_right = (class_logits.argmax(-1) == target).float()
    return Loss(-finite_logprobs(logprobs.gather(1, target[:, None]).squeeze(1)), {"class_accuracy": is_right})
