"""THE TABLE: an algorithm is a row. Same learner, same loop; a row names what it trains on and with which functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lydian.objectives import advantage as adv
from lydian.objectives import likelihood, policy_gradient
from lydian.objectives import preference as pref
from lydian.objectives.loss import Loss
from lydian.objectives.preference_anchored import apo_down, apo_zero, nca, sppo
from lydian.objectives.preference_free import chosen_nll, cpo, orpo, simpo
from lydian.objectives.preference_length import dpo_normalised, ld_dpo, r_dpo
from lydian.objectives.preference_transport import aot, aot_unpaired
from lydian.objectives.preference_unpaired import bco, kto
from lydian.training.mixture import mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One row.

    name       as recipes write it
    summary    one line
    source     paper, where there is one
    data       what it trains on: conversations and preferences are given, problems are sampled
    objective  the loss; keyword-only parameters are its settings
    advantage  credit within a group; None for those that select completions or imitate given text
    defaults   stage settings (also of `objective` and `advantage`) that differ from the general defaults
    """

    name: str
    summary: str
    source: str
    data: Literal["conversations", "preferences", "problems"]
    objective: Callable[..., Loss]
    advantage: Callable[..., Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


_IMITATION = {"batch_size": 32, "optimiser": {"learning_rate": 2e-5, "schedule": "cosine", "warmup_share": 0.03}}
_ON_POLICY = {"rounds": 100, "problems_per_round": 32}
_OFFLINE = {"batch_size": 32, "optimiser": {"learning_rate": 1e-6, "schedule": "linear", "warmup_share": 0.1}}


def _imitate(name: str, data: Any, loss: Callable[..., Loss], summary: str, source: str, **more: Any) -> Algorithm:
    """A row that makes given text, or its own correct samples, more likely."""
    return Algorithm(name=name, summary=summary, source=source, data=data, objective=loss, defaults=_IMITATION | more)


def _reinforce(
    name: str,
    loss: Callable[..., Loss],
    advantage: Callable[..., Any],
    normaliser: str,
    summary: str,
    source: str,
    **more: Any,
) -> Algorithm:
    """A row that samples problems and follows the policy gradient of the verdicts."""
    defaults = _ON_POLICY | {"normaliser": normaliser} | more
    return Algorithm(
        name=name,
        summary=summary,
        source=source,
        data="problems",
        objective=loss,
        advantage=advantage,
        defaults=defaults,
    )


def _prefer(
    loss: Callable[..., Loss],
    summary: str,
    source: str,
    *,
    name: str | None = None,
    normaliser: str = "pair_mean",
    **more: Any,
) -> Algorithm:
    """A row that trains on pairs of a chosen and a rejected reply, by default under the name of its loss."""
    return Algorithm(
        name=name or loss.__name__,
        summary=summary,
        source=source,
        data="preferences",
        objective=loss,
        defaults=_OFFLINE | {"normaliser": normaliser} | more,
    )


_ROWS = (
    # Likelihood
    _imitate("pretrain", "conversations", likelihood.nll, "Next-token training on plain text.", ""),
    _imitate(
        "sft",
        "conversations",
        likelihood.nll,
        "Supervised fine-tuning: imitates the assistant's messages.",
        "Ouyang et al. (2022), arXiv:2203.02155",
    ),
    _imitate(
        "dft",
        "conversations",
        likelihood.dft,
        "Supervised fine-tuning with each token weighted by its own probability.",
        "Wu et al. (2025), arXiv:2508.05629",
    ),
    _imitate(
        "expert_iteration",
        "problems",
        likelihood.nll,
        "Samples, keeps what the verifier accepts, imitates it; again from the better weights.",
        "Anthony et al. (2017), arXiv:1705.08439",
        rounds=2,
    ),
    # Policy gradient
    _reinforce(
        "reinforce",
        policy_gradient.reinforce,
        adv.group_mean,
        "token_mean",
        "REINFORCE with the group's mean reward as baseline.",
        "Williams (1992)",
    ),
    _reinforce(
        "reinforce_no_baseline",
        policy_gradient.reinforce,
        adv.raw_reward,
        "token_mean",
        "REINFORCE on raw rewards.",
        "Williams (1992)",
    ),
    _reinforce(
        "rloo",
        policy_gradient.reinforce,
        adv.leave_one_out,
        "constant",
        "REINFORCE with a leave-one-out baseline, weighted by whole sequences.",
        "Ahmadian et al. (2024), arXiv:2402.14740",
        constant=1.0,
    ),
    _reinforce(
        "remax",
        policy_gradient.reinforce,
        adv.remax,
        "constant",
        "REINFORCE with the reward of the greedy completion as baseline.",
        "Li et al. (2023), arXiv:2310.10505",
        constant=1.0,
    ),
    _reinforce(
        "reinforce_pp",
        policy_gradient.clip,
        adv.batch_whiten,
        "token_mean",
        "REINFORCE++: rewards whitened over the whole step, clipped surrogate.",
        "Hu (2025), arXiv:2501.03262",
    ),
    _reinforce(
        "reinforce_pp_baseline",
        policy_gradient.clip,
        adv.group_mean_batch_std,
        "token_mean",
        "REINFORCE++ with the group's mean taken off first, then scaled by the step's deviation.",
        "Hu (2025), arXiv:2501.03262",
    ),
    _reinforce(
        "max_rl",
        policy_gradient.reinforce,
        adv.max_rl,
        "constant",
        "Deviation from the group's mean in units of that mean: hard problems weigh more.",
        "Tajwar et al. (2026), arXiv:2602.02710",
        constant=1.0,
    ),
    _reinforce(
        "grpo",
        policy_gradient.clip,
        adv.group_mean_std,
        "sequence_mean",
        "Clipped surrogate, rewards standardised within the group, mean over each sequence.",
        "Shao et al. (2024), arXiv:2402.03300",
    ),
    _reinforce(
        "grpo_no_clip",
        policy_gradient.ratio,
        adv.group_mean_std,
        "sequence_mean",
        "GRPO without the clip: the plain importance ratio.",
        "Shao et al. (2024), arXiv:2402.03300",
    ),
    _reinforce(
        "dr_grpo",
        policy_gradient.clip,
        adv.group_mean,
        "constant",
        "GRPO without the two biases: no division by the deviation, a constant instead of the length.",
        "Liu et al. (2025), arXiv:2503.20783",
    ),
    _reinforce(
        "dapo",
        policy_gradient.clip,
        adv.group_mean_std,
        "token_mean",
        "GRPO with a wider upper clip, a mean over all tokens, dynamic sampling and a penalty on overlong replies.",
        "Yu et al. (2025), arXiv:2503.14476",
        objective={"clip_low": 0.2, "clip_high": 0.28},
        most_draws=3,
        overlong_share=0.2,
    ),
    _reinforce(
        "gdpo",
        policy_gradient.clip,
        adv.normalise_then_sum,
        "sequence_mean",
        "GRPO with each part of the verdict standardised on its own before they are added.",
        "Liu et al. (2026), arXiv:2601.05242",
    ),
    _reinforce(
        "gspo",
        policy_gradient.gspo,
        adv.group_mean_std,
        "sequence_mean",
        "One ratio a sequence, the geometric mean of its tokens', clipped.",
        "Zheng et al. (2025), arXiv:2507.18071",
    ),
    _reinforce(
        "gspo_token",
        policy_gradient.gspo_token,
        adv.group_mean_std,
        "sequence_mean",
        "GSPO's ratio with a gradient of its own for each token.",
        "Zheng et al. (2025), arXiv:2507.18071",
    ),
    _reinforce(
        "gmpo",
        policy_gradient.gmpo,
        adv.group_mean_std,
        "sequence_mean",
        "Geometric mean of the tokens' clipped ratios.",
        "Zhao et al. (2025), arXiv:2507.20673",
    ),
    _reinforce(
        "sapo",
        policy_gradient.sapo,
        adv.group_mean_std,
        "sequence_mean",
        "A smooth gate in place of the clip.",
        "Gao et al. (2025), arXiv:2511.20347",
    ),
    _reinforce(
        "cispo",
        policy_gradient.cispo,
        adv.group_mean_std,
        "token_mean",
        "REINFORCE weighted by a capped ratio: no token is dropped.",
        "MiniMax (2025), arXiv:2506.13585",
    ),
    # Preferences
    _prefer(
        pref.dpo,
        "Direct preference optimisation against the weights at the stage's start.",
        "Rafailov et al. (2023), arXiv:2305.18290",
    ),
    _prefer(pref.cdpo, "DPO with smoothed labels.", "Mitchell (2023), note on conservative DPO"),
    _prefer(pref.robust_dpo, "DPO unbiased under flipped labels.", "Chowdhury et al. (2024), arXiv:2403.00409"),
    _prefer(pref.ipo, "Squared distance of the margin from its target, sums.", "Azar et al. (2023), arXiv:2310.12036"),
    _prefer(pref.ipo_mean, "IPO on means over tokens.", "Azar et al. (2023), arXiv:2310.12036"),
    _prefer(pref.hinge, "Hinge on the margin (SLiC).", "Zhao et al. (2023), arXiv:2305.10425"),
    _prefer(pref.exo, "Reverse KL to the preference distribution.", "Ji et al. (2024), arXiv:2402.00856"),
    _prefer(
        pref.discopop, "A loss found by search: logistic and exponential, mixed.", "Lu et al. (2024), arXiv:2406.08414"
    ),
    _prefer(pref.f_dpo, "DPO for other f-divergences to the reference.", "Wang et al. (2023), arXiv:2309.16240"),
    _prefer(
        pref.wpo, "DPO weighted by how likely the pair is under the policy.", "Zhou et al. (2024), arXiv:2406.11827"
    ),
    _prefer(dpo_normalised, "DPO on means over tokens.", "Meng et al. (2024), arXiv:2405.14734, as an ablation"),
    _prefer(r_dpo, "DPO with a penalty on the difference of lengths.", "Park et al. (2024), arXiv:2403.19159"),
    _prefer(ld_dpo, "DPO that discounts what is longer than the other reply.", "Liu et al. (2024), arXiv:2409.06411"),
    _prefer(apo_zero, "Chosen up and rejected down, each by itself.", "D'Oosterlinck et al. (2024), arXiv:2408.06266"),
    _prefer(apo_down, "Both down, the rejected more.", "D'Oosterlinck et al. (2024), arXiv:2408.06266"),
    _prefer(nca, "Noise-contrastive alignment: keeps the chosen likely.", "Chen et al. (2024), arXiv:2402.05369"),
    _prefer(sppo, "Both log-ratios to fixed targets.", "Wu et al. (2024), arXiv:2405.00675"),
    _prefer(aot, "Sorted margins against the reference's.", "Melnyk et al. (2024), arXiv:2406.05882"),
    _prefer(
        aot_unpaired,
        "Sorted chosen against sorted rejected log-ratios.",
        "Melnyk et al. (2024), arXiv:2406.05882",
        normaliser="sequence_mean",
    ),
    _prefer(simpo, "Mean logprobs with a target margin; no reference.", "Meng et al. (2024), arXiv:2405.14734"),
    _prefer(
        orpo, "Likelihood of the chosen and a log-odds ratio; no reference.", "Hong et al. (2024), arXiv:2403.07691"
    ),
    _prefer(cpo, "Contrast without a reference, and likelihood of the chosen.", "Xu et al. (2024), arXiv:2401.08417"),
    _prefer(
        mixture({pref.dpo: 1.0, chosen_nll: 1.0}),
        "DPO and the likelihood of the chosen, so that it does not fall with the rejected.",
        "Pang et al. (2024), arXiv:2404.19733",
        name="rpo",
    ),
    _prefer(
        kto,
        "Each reply desirable or not, against a KL estimated on mismatched replies.",
        "Ethayarajh et al. (2024), arXiv:2402.01306",
        normaliser="sequence_mean",
    ),
    _prefer(
        bco,
        "Each reply desirable or not, by a logistic loss with a shift.",
        "Jung et al. (2024), arXiv:2404.04656",
        normaliser="sequence_mean",
    ),
)

ALGORITHMS: dict[str, Algorithm] = {row.name: row for row in _ROWS}
