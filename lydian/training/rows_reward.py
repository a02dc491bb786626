"""The table's rows that train a head to judge: reward models, process reward models, classifiers."""

from __future__ import annotations

from lydian.objectives.likelihood import classification
from lydian.objectives.reward import bradley_terry, bradley_terry_margin, process_reward
from lydian.training.row import Algorithm

_JUDGING = {"batch_size": 32, "optimiser": {"learning_rate": 5e-5, "schedule": "cosine", "warmup_share": 0.03}}

REWARD_ROWS = (
    Algorithm(
        name="reward_model",
        summary="A score for a reply, read at its last token, higher for the chosen one of each pair.",
        source="Ouyang et al. (2022), arXiv:2203.02155, eq. 1",
        data="preferences",
        objective=bradley_terry,
        defaults=_JUDGING | {"normaliser": "pair_mean", "objective": {"centring_coef": 0.01}},
    ),
    Algorithm(
        name="reward_model_margin",
        summary="A reward model on graded preferences: the metadata `margin` says how much better the chosen one is.",
        source="Touvron et al. (2023), arXiv:2307.09288, eq. 2",
        data="preferences",
        objective=bradley_terry_margin,
        defaults=_JUDGING | {"normaliser": "pair_mean", "objective": {"centring_coef": 0.01}},
    ),
    Algorithm(
        name="process_reward_model",
        summary="A score for each step of a reply, the logit that the step is right.",
        source="Lightman et al. (2023), arXiv:2305.20050",
        data="stepwise",
        objective=process_reward,
        defaults=_JUDGING | {"normaliser": "token_mean"},
    ),
    Algorithm(
        name="classifier",
        summary="The class of a text, read at its last token.",
        source="Radford et al. (2018), section 3.2",
        data="labelled",
        objective=classification,
        defaults=_JUDGING | {"normaliser": "sequence_mean"},
    ),
)
