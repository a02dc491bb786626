"""THE TABLE: an algorithm is a row. Same learner, same loop; a row names what it trains on and with which functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from lydian.objectives import advantage as adv
from lydian.objectives import likelihood, policy_gradient
from lydian.objectives.distillation import forward_kl, jensen_shannon, reverse_kl, sampled_reverse_kl
from lydian.objectives.loss import Loss
from lydian.objectives.returns import gae
from lydian.training.row import Algorithm
from lydian.training.rows_preference import PREFERENCE_ROWS
from lydian.training.rows_reward import REWARD_ROWS

__all__ = ["ALGORITHMS", "Algorithm"]

_IMITATION = {"batch_size": 32, "optimiser": {"learning_rate": 2e-5, "schedule": "cosine", "warmup_share": 0.03}}
_ON_POLICY = {"rounds": 100, "problems_per_round": 32}


def _imitate(name: str, data: Any, loss: Callable[..., Loss], summary: str, source: str, **more: Any) -> Algorithm:
    """A row that makes given text, or its own correct samples, more likely."""
    return Algorithm(
        name=name,
        summary=summary,
        source=source,
        data=data,
        objective=loss,
        credit="imitation" if data == "problems" else None,
        defaults=_IMITATION | more,
    )


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
        credit="group",
        advantage=advantage,
        defaults=defaults,
    )


def _actor_critic(name: str, network: str, summary: str, source: str) -> Algorithm:
    """A row that samples problems and follows the policy gradient of a critic's advantages, several steps a round."""
    return Algorithm(
        name=name,
        summary=summary,
        source=source,
        data="problems",
        objective=policy_gradient.clip,
        credit="critic",
        advantage=gae,
        defaults=_ON_POLICY
        | {"epochs": 2, "batch_size": 64, "critic": {"network": network}, "kl": {"place": "reward", "coef": 0.05}},
    )


def _distil(
    name: str,
    loss: Callable[..., Loss],
    summary: str,
    source: str,
    *,
    data: Literal["conversations", "problems"] = "conversations",
    mixes: Literal["conversations"] | None = None,
    **more: Any,
) -> Algorithm:
    """A row that draws the policy to a teacher, on given text or on its own samples whatever their verdict."""
    is_sampled = data == "problems"
    return Algorithm(
        name=name,
        summary=summary,
        source=source,
        data=data,
        objective=loss,
        credit="teacher" if is_sampled else None,
        mixes=mixes,
        defaults=(_ON_POLICY if is_sampled else _IMITATION) | more,
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
    _imitate(
        "rft",
        "problems",
        likelihood.nll,
        "Rejection-sampling fine-tuning: one round of expert iteration that keeps every distinct correct completion.",
        "Yuan et al. (2023), arXiv:2308.01825",
        keep_per_problem=0,
    ),
    _imitate(
        "star",
        "problems",
        likelihood.nll,
        "Expert iteration that shows the answer where no sample was right, and trains anew from the first weights.",
        "Zelikman et al. (2022), arXiv:2203.14465",
        rounds=4,
        hint="\n(Hint: the answer is {answer}.)",
        restart=True,
    ),
    # Distillation
    _distil(
        "distil", forward_kl, "Forward KL to a teacher on given replies.", "Hinton et al. (2015), arXiv:1503.02531"
    ),
    _distil(
        "distil_reverse", reverse_kl, "Reverse KL to a teacher on given replies.", "Gu et al. (2023), arXiv:2306.08543"
    ),
    _distil(
        "distil_jsd",
        jensen_shannon,
        "Generalised Jensen–Shannon divergence to a teacher on given replies.",
        "Agarwal et al. (2023), arXiv:2306.13649",
    ),
    _distil(
        "gkd",
        jensen_shannon,
        "Jensen–Shannon divergence to a teacher on the policy's own samples and on given replies.",
        "Agarwal et al. (2023), arXiv:2306.13649",
        data="problems",
        mixes="conversations",
    ),
    _distil(
        "on_policy_distillation",
        sampled_reverse_kl,
        "Samples, and moves each sampled token by the teacher's logprob minus its own.",
        "Thinking Machines Lab (2025), On-policy distillation",
        data="problems",
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
    _actor_critic(
        "ppo",
        "own",
        "Clipped surrogate on advantages of tokens, against a critic of its own; KL in the reward.",
        "Schulman et al. (2017), arXiv:1707.06347; Ouyang et al. (2022), arXiv:2203.02155",
    ),
    _actor_critic(
        "ppo_shared",
        "shared",
        "PPO with the critic as a head on the policy's trunk: one model, one loss.",
        "Schulman et al. (2017), arXiv:1707.06347, eq. 9",
    ),
    # Preferences, given or between the policy's own samples
    *PREFERENCE_ROWS,
    # Heads that judge
    *REWARD_ROWS,
    # Without training
    Algorithm(
        name="best_of_n",
        summary="Trains nothing: answers with the one of num_samples completions that the verifier scores best.",
        source="Stiennon et al. (2020), arXiv:2009.01325",
        data="problems",
        objective=None,
    ),
)

ALGORITHMS: dict[str, Algorithm] = {row.name: row for row in _ROWS}
