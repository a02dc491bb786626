"""Losses on pairs without a reference policy, and the likelihood of the chosen reply that others are mixed with.

p̄ is the mean log π over the trained tokens of a reply; the loss of a pair is repeated at each of its sites.
"""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from lydian.objectives.divergence import LOG_RATIO_LIMIT
from lydian.objectives.loss import Loss
from lydian.objectives.precision import finite_logprobs
from lydian.objectives.preference_pairs import Pairs


def simpo(
    logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 2.0,
    target_margin: float = 0.5,
) -> Loss:
    """Simple preference optimisation, −log σ(β (p̄_w − p̄_l) − γ).

    logprobs   [n] log π of each trained token under the current policy, in nats
    sequence   [n] index of the sequence of each token
    pair       [s] number of the pair of each sequence
    is_chosen  [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta           β > 0: scale of the mean logprobs
    target_margin  γ ≥ 0: how far apart the rewards β p̄ shall be

    Statistics: as `dpo`, with rewards β p̄; margin is theirs, before γ. Use: no reference policy in memory.
    Trap: nothing holds the policy near its start, and no likelihood term is hidden here: for CPO-SimPO use a `mixture`
    with `chosen_nll`. Source: Meng et al. (2024), arXiv:2405.14734, eq. 6.

    >>> import torch
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> loss = simpo(torch.tensor([-1.0, -1.5]), ids, pair, is_chosen, beta=2.0, target_margin=0.5).loss
    >>> round(loss[0].item(), 4)  # 2 · 0.5 − 0.5 = 0.5
    0.4741
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    reward = beta * pairs.mean(finite_logprobs(logprobs))
    return pairs.loss(-logsigmoid(pairs.margin(reward) - target_margin), reward, logprobs)


def orpo(
    logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    odds_coef: float = 0.1,
) -> Loss:
    """Odds-ratio preference optimisation, −p̄_w − λ log σ(o_w − o_l), log-odds o = p̄ − log(1 − e^p̄).

    logprobs   [n] log π of each trained token under the current policy, in nats
    sequence   [n] index of the sequence of each token
    pair       [s] number of the pair of each sequence
    is_chosen  [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    odds_coef  λ ≥ 0: weight of the odds-ratio term beside the chosen reply's likelihood

    Statistics: as `dpo`, with rewards λ o, and chosen_nll (−p̄_w). Use: fine-tuning and preferences in one stage, from
    a base model. Trap: the likelihood is that of the trained tokens alone, not of the prompt. o is held at
    20, without gradient, as p̄ comes to 0. Source: Hong et al. (2024), arXiv:2403.07691, eq. 6 and 7.

    >>> import torch
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> loss = orpo(torch.tensor([-0.5, -1.0]), ids, pair, is_chosen, odds_coef=1.0).loss
    >>> round(loss[0].item(), 4)  # o_w − o_l = 0.9741; 0.5 + 0.3203
    0.8203
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    mean = pairs.mean(finite_logprobs(logprobs))
    below_one = mean.clamp(max=-math.exp(-LOG_RATIO_LIMIT))
    log_odds = below_one - (-below_one.expm1()).log()
    nll = -mean[pairs.chosen]
    loss, statistics = pairs.loss(nll - odds_coef * logsigmoid(pairs.margin(log_odds)), odds_coef * log_odds, logprobs)
    return Loss(loss, {**statistics, "chosen_nll": nll.detach()[pairs.site_pair]})


def cpo(
    logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    beta: float = 0.1,
    nll_coef: float = 1.0,
) -> Loss:
    """Contrastive preference optimisation, −log σ(β (Σ log π(y_w) − Σ log π(y_l))) − c p̄_w.

    logprobs   [n] log π of each trained token under the current policy, in nats
    sequence   [n] index of the sequence of each token
    pair       [s] number of the pair of each sequence
    is_chosen  [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    beta       β > 0: scale of the sums of logprobs
    nll_coef   c ≥ 0: weight of the chosen reply's likelihood, per token (the paper writes its sum)

    Statistics: as `dpo`, with rewards β Σ log π, and chosen_nll (−p̄_w). Use: DPO without a reference in memory; the
    likelihood term takes its place. Trap: sums favour the shorter reply from the start.
    Source: Xu et al. (2024), arXiv:2401.08417.

    >>> import torch
    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> loss = cpo(torch.tensor([-1.0, -3.0]), ids, pair, is_chosen, beta=0.1, nll_coef=1.0).loss
    >>> round(loss[0].item(), 4)  # −log σ(0.2) + 1
    1.5981
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    values = finite_logprobs(logprobs)
    reward = beta * pairs.sum(values)
    nll = -pairs.mean(values)[pairs.chosen]
    loss, statistics = pairs.loss(nll_coef * nll - logsigmoid(pairs.margin(reward)), reward, logprobs)
    return Loss(loss, {**statistics, "chosen_nll": nll.detach()[pairs.site_pair]})


def chosen_nll(
    logprobs: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
) -> Loss:
    """Negative log-likelihood of the chosen reply, −p̄_w, once a pair.

    logprobs   [n] log π of each trained token under the current policy, in nats
    sequence   [n] index of the sequence of each token
    pair       [s] number of the pair of each sequence
    is_chosen  [s] 1 for the chosen sequence of its pair, 0 for the rejected one

    Statistics: chosen_nll. Use: in a `mixture`, to keep the chosen reply's likelihood from falling (RPO, MPO); every
    pair weighs the same, whatever its lengths. Trap: alone it is fine-tuning on the chosen replies.
    Source: Pang et al. (2024), "Iterative reasoning preference optimization", arXiv:2404.19733.

    >>> import torch
    >>> ids, pair, is_chosen = torch.tensor([0, 0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> chosen_nll(torch.tensor([-1.0, -2.0, -9.0]), ids, pair, is_chosen).loss.tolist()
    [1.5, 1.5, 1.5]
    """
    pairs = Pairs.of(sequence, pair, is_chosen)
    nll = -pairs.mean(finite_logprobs(logprobs))[pairs.chosen][pairs.site_pair]
    return Loss(nll, {"chosen_nll": nll.detach()})
