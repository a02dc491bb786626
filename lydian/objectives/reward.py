"""Losses of reward models: `score` is the scalar head's output at each site, in units of reward.

The score of a reply is that of its last site, which must have read the reply's last token. The loss of a pair or a
ranking is repeated at each of its sites (see `Loss`).
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from lydian.objectives.loss import Loss
from lydian.objectives.precision import constant, full_precision
from lydian.objectives.preference_pairs import Pairs
from lydian.objectives.segments import place_in_segment, segment_mean, segment_size, segment_sum

Aggregation = Literal["min", "last", "product", "mean"]


def bradley_terry(
    score: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    *,
    centring_coef: float = 0.0,
) -> Loss:
    """Bradley–Terry reward model, −log σ(r_w − r_l) + c (r_w + r_l)².

    score          [n] the scalar head's output at each site; r is that of a reply's last site
    sequence       [n] index of the sequence of each token
    pair           [s] number of the pair of each sequence
    is_chosen      [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    centring_coef  c ≥ 0: pulls the mean of the two scores to 0, not each of them; 0.01 is usual

    Statistics: score_chosen, score_rejected, margin (r_w − r_l), preference_accuracy (margin > 0). Use: with
    `pair_mean`. Trap: without centring, scores are free up to a constant of the prompt, and rewards of two prompts
    cannot be compared. Source: Ouyang et al. (2022), arXiv:2203.02155, eq. 1; centring: Eisenstein et al. (2023),
    arXiv:2312.09244.

    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> loss = bradley_terry(torch.tensor([1.2, 0.2]), ids, pair, is_chosen, centring_coef=0.01).loss
    >>> round(loss[0].item(), 4)  # 0.3133 + 0.01 · 1.4²
    0.3329
    """
    return _bradley_terry(score, sequence, pair, is_chosen, torch.zeros_like(pair), centring_coef)


def bradley_terry_margin(
    score: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    is_chosen: Float[Tensor, " s"],
    pair_margin: Float[Tensor, " s"],
    *,
    centring_coef: float = 0.0,
) -> Loss:
    """Bradley–Terry reward model with a margin, −log σ(r_w − r_l − m) + c (r_w + r_l)².

    score          [n] the scalar head's output at each site; r is that of a reply's last site
    sequence       [n] index of the sequence of each token
    pair           [s] number of the pair of each sequence
    is_chosen      [s] 1 for the chosen sequence of its pair, 0 for the rejected one
    pair_margin    [s] m ≥ 0 of the sequence's pair, read at the chosen one: how much better it was judged to be
    centring_coef  c ≥ 0: pulls the mean of the two scores to 0

    Statistics: as `bradley_terry`; margin and accuracy are before m. Use: graded preferences. Trap: m is in units of
    score; one far above the scores' spread makes all pairs look wrong. Source: Touvron et al. (2023), "Llama 2",
    arXiv:2307.09288, eq. 2.

    >>> ids, pair, is_chosen = torch.tensor([0, 1]), torch.zeros(2), torch.tensor([1.0, 0.0])
    >>> loss = bradley_terry_margin(torch.tensor([1.2, 0.2]), ids, pair, is_chosen, torch.tensor([0.5, 0.5])).loss
    >>> round(loss[0].item(), 4)  # −log σ(0.5)
    0.4741
    """
    return _bradley_terry(score, sequence, pair, is_chosen, pair_margin, centring_coef)


def _bradley_terry(
    score: Tensor, sequence: Tensor, pair: Tensor, is_chosen: Tensor, pair_margin: Tensor, centring_coef: float
) -> Loss:
    pairs = Pairs.of(sequence, pair, is_chosen)
    scores = _last(full_precision(score), sequence, len(pair))
    chosen, rejected = scores[pairs.chosen], scores[pairs.rejected]
    margin = chosen - rejected
    loss = -logsigmoid(margin - pair_margin.detach()[pairs.chosen]) + centring_coef * (chosen + rejected) ** 2
    statistics = {
        "score_chosen": chosen,
        "score_rejected": rejected,
        "margin": margin,
        "preference_accuracy": (margin > 0).float(),
    }
    return Loss(loss[pairs.site_pair], {name: values.detach()[pairs.site_pair] for name, values in statistics.items()})


def plackett_luce(
    score: Float[Tensor, " n"],
    sequence: Int[Tensor, " n"],
    pair: Float[Tensor, " s"],
    rank: Float[Tensor, " s"],
) -> Loss:
    """Plackett–Luce reward model of a whole ranking, Σ_k (log Σ_{j ≥ k} e^(r_j) − r_k) over ranks k, best first.

    score     [n] the scalar head's output at each site; r is that of a reply's last site
    sequence  [n] index of the sequence of each token
    pair      [s] number of the ranking that each sequence belongs to (two or more sequences)
    rank      [s] place within the ranking, the smaller the better; no ties

    Statistics: preference_accuracy, the share of the ranking's pairs that the scores order rightly. Use: rankings of
    more than two; on two it is `bradley_terry`. Trap: a sum of K − 1 choices: long rankings weigh more.
    Raises ValueError on ties and on rankings of one.
    Source: Plackett (1975), "The analysis of permutations"; Luce (1959), "Individual choice behavior".

    >>> ids, rank = torch.tensor([0, 1, 2]), torch.tensor([1.0, 2.0, 3.0])
    >>> round(plackett_luce(torch.tensor([2.0, 1.0, 0.0]), ids, torch.zeros(3), rank).loss[0].item(), 4)
    0.7209
    """
    numbers, ranking = torch.unique(pair, return_inverse=True)
    scores = _last(full_precision(score), sequence, len(pair))
    is_same = ranking[:, None] == ranking
    is_behind = is_same & (rank > rank[:, None])
    num_behind = segment_sum(is_behind.sum(1).float(), ranking, len(numbers))
    size = segment_size(ranking, len(numbers))
    if (num_behind != size * (size - 1) / 2).any() or (size < 2).any():
        raise ValueError(
            f"plackett_luce: rankings {pair.tolist()} with ranks {rank.tolist()}; each needs two sequences or more and "
            "no ties"
        )
    is_left = is_behind | torch.eye(len(pair), dtype=torch.bool, device=pair.device)
    choice = scores.expand(len(pair), -1).masked_fill(~is_left, -torch.inf).logsumexp(1) - scores
    is_right = is_behind & (scores.detach()[:, None] > scores.detach())
    accuracy = segment_sum(is_right.sum(1).float(), ranking, len(numbers)) / num_behind
    loss = segment_sum(choice, ranking, len(numbers))
    site_ranking = ranking[sequence]
    return Loss(loss[site_ranking], {"preference_accuracy": accuracy[site_ranking]})


def score_regression(
    score: Float[Tensor, " n"], sequence: Int[Tensor, " n"], target_score: Float[Tensor, " n"]
) -> Loss:
    """Regression of a reply's score, (r − target)², both read at the reply's last site.

    score         [n] the scalar head's output at each site
    sequence      [n] index of the sequence of each token
    target_score  [n] the score to predict, in units of reward; NaN at the last site leaves the reply out

    Statistics: score_error, |r − target|. Use: graded replies; with `sequence_mean` the step's loss is the mean over
    replies. Trap: a reply left out has loss and gradient exactly 0, but its weight stays in the mean.
    Source: Wang et al. (2024), "HelpSteer2", arXiv:2406.08673.

    >>> target = torch.tensor([torch.nan, 2.0])
    >>> score_regression(torch.tensor([9.0, 0.5]), torch.tensor([0, 0]), target).loss.tolist()
    [2.25, 2.25]
    """
    count = int(sequence.max()) + 1 if len(sequence) else 0
    target = _last(target_score.detach(), sequence, count)
    scores = _last(full_precision(score), sequence, count)
    error = torch.where(target.isnan(), 0.0, scores - target.nan_to_num())
    return Loss((error**2)[sequence], {"score_error": error.detach().abs()[sequence]})


def process_reward(score: Float[Tensor, " n"], target_score: Float[Tensor, " n"], *, ignored: float = -100.0) -> Loss:
    """Process reward model, the binary cross-entropy of σ(score) at step ends: log(1 + e^r) − target · r.

    score         [n] the scalar head's output at each site, a logit
    target_score  [n] the label of the step that ends at the site, in [0, 1]; NaN or `ignored` elsewhere
    ignored       the label of sites that are not step ends, or whose step is not labelled

    Ignored sites have loss and gradient exactly 0. Statistics: is_labelled, and step_right, 1 at labelled sites where
    score and label lie on one side of ½ (divide their means for the accuracy). Use: train step ends only, so that
    `token_mean` is the mean over steps; ignored sites that are trained stay in the denominator. Trap: a label cast to
    a boolean makes −100 true. Raises ValueError for other labels outside [0, 1].
    Source: Lightman et al. (2023), arXiv:2305.20050; Wang et al. (2023), "Math-Shepherd", arXiv:2312.08935.

    >>> loss = process_reward(torch.tensor([5.0, 0.0, -3.0, 0.0]), torch.tensor([-100.0, 1.0, torch.nan, 0.0])).loss
    >>> [round(v, 4) for v in loss.tolist()]
    [0.0, 0.6931, 0.0, 0.6931]
    """
    target = target_score.detach()
    is_labelled = ~(target.isnan() | (target == ignored))
    if (is_labelled & ((target < 0) | (target > 1))).any():
        raise ValueError(f"process_reward: labels outside [0, 1] that are not {ignored} or NaN, the ignored ones")
    logit = full_precision(score)
    label = torch.where(is_labelled, target, 0.0)
    loss = torch.where(is_labelled, softplus(logit) - label * logit, 0.0)
    is_right = is_labelled & ((logit.detach() > 0) == (label > 0.5))
    return Loss(loss, {"is_labelled": is_labelled.float(), "step_right": is_right.float()})


def aggregate_steps(
    score: Float[Tensor, " m"], sequence: Int[Tensor, " m"], count: int, how: Aggregation
) -> Float[Tensor, " s"]:
    """One score a reply from the scores of its steps: their min, last, product or mean. Constant.

    score     [m] score of each step, in order within a reply; probabilities for the product
    sequence  [m] in [0, count): index of the reply of each step
    count     number of replies
    how       min, last, product or mean

    A reply without steps has NaN: it has no score, which is not a score of 0. Trap: name the aggregation wherever the
    score is reported; the product falls with the number of steps. Source: Lightman et al. (2023), arXiv:2305.20050
    (product, min); Wang et al. (2023), arXiv:2312.08935 (min).

    >>> steps, ids = torch.tensor([0.9, 0.5, 0.8]), torch.tensor([0, 0, 0])
    >>> [round(aggregate_steps(steps, ids, 1, how).item(), 4) for how in ("min", "last", "product", "mean")]
    [0.5, 0.8, 0.36, 0.7333]
    """
    steps = constant(score)
    absent = steps.new_full((count,), torch.nan)
    if how == "min":
        return absent.scatter_reduce(0, sequence, steps, "amin", include_self=False)
    if how == "product":
        return absent.scatter_reduce(0, sequence, steps, "prod", include_self=False)
    if how not in ("last", "mean"):
        raise ValueError(f"aggregate_steps: unknown aggregation {how!r}; min, last, product or mean")
    one = _last(steps, sequence, count) if how == "last" else segment_mean(steps, sequence, count)
    return torch.where(segment_size(sequence, count) > 0, one, absent)


def _last(values: Tensor, sequence: Tensor, count: int) -> Tensor:
    """The value at the last entry of each sequence; 0 where it has none."""
    is_last = place_in_segment(sequence) == segment_size(sequence, count)[sequence] - 1
    return segment_sum(torch.where(is_last, values, 0.0), sequence, count)
