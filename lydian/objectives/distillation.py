"""Divergences from a student to a teacher, at each site: exact over the vocabulary, over the top k, or by one sample.

On-policy or off-policy is a matter of where the tokens came from: on the student's own samples (GKD's share λ of the
data) a reverse KL is the objective of on-policy distillation; on given text a forward KL imitates the teacher.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lydian.objectives.divergence import k1, straight_through
from lydian.objectives.loss import Loss
from lydian.objectives.precision import LOGPROB_FLOOR, constant, full_precision


def forward_kl(
    logits: Float[Tensor, "n v"],
    teacher_logits: Float[Tensor, "n v"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Loss:
    """KL(teacher ‖ student) = Σ_v T(v) (log T(v) − log S(v)): covers everything the teacher may say.

    logits          [n, v] the student's
    teacher_logits  [n, v] the teacher's at the same sites, constant
    temperature     both are softened by it, softmax(z / temperature), whatever tokens were sampled at; no factor
                    temperature² is put in
    top_k           compare the teacher's k likeliest tokens one by one, all others as one; None: the whole vocabulary

    Lumping never makes the divergence larger. Statistics: kl_forward, kl_reverse, in nats a token. Use: off-policy
    text, or few samples. Trap: a small student spreads over what it cannot do. Source: Hinton et al. (2015),
    arXiv:1503.02531.

    >>> student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    >>> round(forward_kl(student, teacher).loss.item(), 4)
    0.3681
    """
    student, teacher = _log_distributions(logits, teacher_logits, temperature, top_k)
    return _loss(_kl(teacher, student), student, teacher)


def reverse_kl(
    logits: Float[Tensor, "n v"],
    teacher_logits: Float[Tensor, "n v"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Loss:
    """KL(student ‖ teacher) = Σ_v S(v) (log S(v) − log T(v)): keeps to what the teacher finds likely.

    logits          [n, v] the student's
    teacher_logits  [n, v] the teacher's at the same sites, constant
    temperature     both are softened by it, softmax(z / temperature)
    top_k           compare the teacher's k likeliest tokens one by one, all others as one; None: the whole vocabulary

    Statistics: kl_forward, kl_reverse, in nats a token. Use: on the student's own samples. Trap: it leaves
    out how a token leads to the tokens after it. Source: Gu et al. (2023), "MiniLLM", arXiv:2306.08543.

    >>> student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    >>> round(reverse_kl(student, teacher).loss.item(), 4)
    0.5108
    """
    student, teacher = _log_distributions(logits, teacher_logits, temperature, top_k)
    return _loss(_kl(student, teacher), student, teacher)


def jensen_shannon(
    logits: Float[Tensor, "n v"],
    teacher_logits: Float[Tensor, "n v"],
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    top_k: int | None = None,
) -> Loss:
    """Generalised Jensen–Shannon divergence, β KL(T ‖ M) + (1 − β) KL(S ‖ M) with M = β T + (1 − β) S.

    logits          [n, v] the student's
    teacher_logits  [n, v] the teacher's at the same sites, constant
    beta            0 < β < 1: near 0 it behaves as β · KL(T ‖ S), near 1 as (1 − β) · KL(S ‖ T)
    temperature     both are softened by it, softmax(z / temperature)
    top_k           compare the teacher's k likeliest tokens one by one, all others as one; None: the whole vocabulary

    Raises ValueError for β = 0 and β = 1, where it is 0: use `forward_kl` and `reverse_kl`, which are its slopes there.
    Statistics: kl_forward, kl_reverse, in nats a token. Use: between the two KLs, bounded by log 2. Trap: its scale
    changes with β. Source: Agarwal et al. (2023), "GKD", arXiv:2306.13649, eq. 1.

    >>> student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    >>> round(jensen_shannon(student, teacher).loss.item(), 4)
    0.1017
    """
    if not 0 < beta < 1:
        raise ValueError(f"jensen_shannon: beta is {beta}; it must lie between 0 and 1 (use forward_kl or reverse_kl)")
    student, teacher = _log_distributions(logits, teacher_logits, temperature, top_k)
    weights = student.new_tensor([beta, 1 - beta]).log()
    mixture = torch.logaddexp(teacher + weights[0], student + weights[1])
    return _loss(beta * _kl(teacher, mixture) + (1 - beta) * _kl(student, mixture), student, teacher)


def sampled_reverse_kl(logprobs: Float[Tensor, " n"], teacher_logprobs: Float[Tensor, " n"]) -> Loss:
    """KL(student ‖ teacher) from the sampled token: value log S − log T, gradient (log S − log T) ∇log S.

    logprobs          [n] log π of each token that the student sampled, in nats
    teacher_logprobs  [n] the teacher's logprob of the same token, constant

    Both are those of the temperature that the token was sampled at: the divergence is of these distributions. The
    policy gradient with advantage log T − log S for each token by itself. Statistics: kl_reverse, that value. Use:
    on-policy distillation from a teacher that gives logprobs only. Trap: on text that the student did not sample it
    estimates nothing. Source: Agarwal et al. (2023), arXiv:2306.13649; Thinking Machines Lab (2025), "On-policy
    distillation".

    >>> sampled_reverse_kl(torch.tensor([-1.0]), torch.tensor([-1.5])).loss.tolist()
    [0.5]
    """
    loss = straight_through(logprobs, constant(teacher_logprobs), value="k1")
    return Loss(loss, {"kl_reverse": k1(logprobs, teacher_logprobs).detach()})


def _log_distributions(
    logits: Tensor, teacher_logits: Tensor, temperature: float, top_k: int | None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of student and teacher over the compared tokens, at least LOGPROB_FLOOR."""
    if logits.shape != teacher_logits.shape:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} and teacher_logits of shape {tuple(teacher_logits.shape)}: the "
            "same sites and the same vocabulary are needed; cut padding off the larger vocabulary first"
        )
    student = (full_precision(logits) / temperature).log_softmax(-1).clamp(min=LOGPROB_FLOOR)
    teacher = (constant(teacher_logits) / temperature).log_softmax(-1).clamp(min=LOGPROB_FLOOR)
    if top_k is None or top_k >= logits.shape[-1]:
        return student, teacher
    likeliest = teacher.topk(top_k, dim=-1).indices
    return _with_rest(student, likeliest), _with_rest(teacher, likeliest)


def _with_rest(logprobs: Tensor, kept: Tensor) -> Tensor:
    """Log-probabilities of the kept tokens and, last, of all others together."""
    rest = logprobs.scatter(-1, kept, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([logprobs.gather(-1, kept), rest.clamp(min=LOGPROB_FLOOR)], dim=-1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(-1)


def _loss(loss: Tensor, student: Tensor, teacher: Tensor) -> Loss:
    with torch.no_grad():
        return Loss(loss, {"kl_forward": _kl(teacher, student), "kl_reverse": _kl(student, teacher)})
