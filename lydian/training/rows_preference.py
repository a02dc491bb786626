"""The table's rows that train on preferences: given ones, and those between the policy's own samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from lydian.objectives import preference as pref
from lydian.objectives.loss import Loss
from lydian.objectives.preference_anchored import apo_down, apo_zero, nca, sppo
from lydian.objectives.preference_free import chosen_nll, cpo, orpo, simpo
from lydian.objectives.preference_length import dpo_normalised, ld_dpo, r_dpo
from lydian.objectives.preference_transport import aot, aot_unpaired
from lydian.objectives.preference_unpaired import bco, kto
from lydian.training.mixture import mixture
from lydian.training.row import Algorithm

_OFFLINE = {"batch_size": 32, "optimiser": {"learning_rate": 1e-6, "schedule": "linear", "warmup_share": 0.1}}
_ONLINE = {"rounds": 100, "problems_per_round": 32, "optimiser": {"learning_rate": 1e-6}}


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


def _prefer_own(
    name: str,
    loss: Callable[..., Loss],
    summary: str,
    source: str,
    *,
    credit: Literal["pairs", "feedback"] = "pairs",
    normaliser: str = "pair_mean",
    **more: Any,
) -> Algorithm:
    """A row that samples problems and trains on what the verdicts prefer among its own completions."""
    return Algorithm(
        name=name,
        summary=summary,
        source=source,
        data="problems",
        objective=loss,
        credit=credit,
        defaults=_ONLINE | {"normaliser": normaliser} | more,
    )


_RPO = mixture({pref.dpo: 1.0, chosen_nll: 1.0})

PREFERENCE_ROWS = (
    # Given
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
        _RPO,
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
    # Between the policy's own samples
    _prefer_own(
        "online_dpo",
        pref.dpo,
        'DPO on pairs of its own samples; with few long rounds and reference = "round" it is iterative DPO.',
        "Guo et al. (2024), arXiv:2402.04792",
    ),
    _prefer_own(
        "online_ipo", pref.ipo, "IPO on pairs of its own samples.", "Calandriello et al. (2024), arXiv:2403.08635"
    ),
    _prefer_own(
        "iterative_rpo",
        _RPO,
        "A few rounds of DPO and the likelihood of the chosen, each on new pairs of its own and from a new reference.",
        "Pang et al. (2024), arXiv:2404.19733",
        rounds=4,
        problems_per_round=0,
        batch_size=32,
        pairs={"most": 4},
        reference="round",
        reference_logprobs="cached",
    ),
    _prefer_own(
        "online_kto",
        kto,
        "KTO on its own samples, desirable where they are correct.",
        "Ethayarajh et al. (2024), arXiv:2402.01306",
        credit="feedback",
        normaliser="sequence_mean",
    ),
)
