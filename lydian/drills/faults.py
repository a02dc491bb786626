"""The classic mistakes. Each replaces one function of the real pipeline, and everything around it stays as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lydian.drills import guards
from lydian.drills.fault import Fault
from lydian.training.terms import KLInLoss

PAD = 0
"""The tiny model's padding token."""

Function = Callable[..., Any]


def _all_trained(original: Function) -> Function:
    def encode_conversation(template: Any, messages: Any) -> Any:
        encoded = original(template, messages)
        return replace(encoded, trained=(False,) + (True,) * (len(encoded.tokens) - 1))

    return encode_conversation


def _last_not_trained(original: Function) -> Function:
    def encode_conversation(template: Any, messages: Any) -> Any:
        encoded = original(template, messages)
        return replace(encoded, trained=(*encoded.trained[:-1], False))

    return encode_conversation


def _padding_trained(original: Function) -> Function:
    def encode_items(items: Any, template: Any) -> Any:
        sequences = original(items, template)
        lacking = [max(len(s.tokens) for s in sequences) - len(s.tokens) for s in sequences]
        return [
            replace(s, tokens=s.tokens + (PAD,) * n, trained=s.trained + (True,) * n)
            for s, n in zip(sequences, lacking, strict=True)
        ]

    return encode_items


def _not_shifted(original: Function) -> Function:
    """A site reads nodes[t − 1]; with the nodes moved up by one that is the state of the token itself."""

    def sites(placed: Any, weights: Any) -> Any:
        return original([(sequence, np.append(nodes[1:], nodes[-1])) for sequence, nodes in placed], weights)

    return sites


def _negated(original: Function) -> Function:
    return lambda sequence, advantage: original(sequence, -advantage)


def _swapped(original: Function) -> Function:
    return lambda preference, template: original(preference, template)[::-1]


def _random_at_start(original: Function) -> Function:
    return functools.partial(original, init_lora_weights=False)


def _unscaled(original: Function) -> Function:
    def merged_weight(layer: Any) -> Any:
        scaling = dict(layer.scaling)
        layer.scaling.update(dict.fromkeys(scaling, 1.0))
        try:
            return original(layer)
        finally:
            layer.scaling.update(scaling)

    return merged_weight


def _thawed(original: Function) -> Function:
    return lambda *given, **named: original(*given, **named).requires_grad_(True)


def _not_copied(original: Function) -> Function:
    return lambda learner: {name: live.detach() for name, live in learner._trainable.items()}


def _dropping_out(original: Function) -> Function:
    @contextmanager
    def as_reference(learner: Any) -> Iterator[None]:
        attentions = [m for m in learner.policy.model.modules() if hasattr(m, "attention_dropout")]
        with original(learner):
            for module in attentions:
                module.attention_dropout, module.training = 0.1, True
            try:
                yield
            finally:
                for module in attentions:
                    module.attention_dropout, module.training = 0.0, False

    return as_reference


def _at_temperature_one(original: Function) -> Function:
    return lambda trajectory, **settings: replace(original(trajectory, **settings), temperature=1.0)


def _remembered(original: Function) -> Function:
    first: dict[str, list[float]] = {}

    def token_logprobs(learner: Any, items: Any) -> dict[str, list[float]]:
        return {name: first.setdefault(name, values) for name, values in original(learner, items).items()}

    return token_logprobs


def _version_only(original: Function) -> Function:
    def load(engine: Any, weights: Any) -> None:
        engine._version = weights.version

    return load


def _mean_of_means(original: Function) -> Function:
    def plant(learner: Any, items: Any, weights: Any) -> Any:
        forests = original(learner, items, weights)
        means = [f.sites.weight / f.sites.weight.sum() / len(forests) for f in forests]
        return [replace(f, sites=replace(f.sites, weight=w)) for f, w in zip(forests, means, strict=True)]

    return plant


def _over_the_batch(original: Function) -> Function:
    def std(deviation: Any, group: Any, ddof: int) -> Any:
        return original(deviation, torch.zeros_like(group), ddof).expand(int(group.max()) + 1)

    return std


def _penalised_again(original: Function) -> Function:
    def loss(learner: Any, forest: Any, reference: Any, *rest: Any) -> Any:
        in_reward = learner._kl
        learner._kl = KLInLoss(coef=in_reward.coef)
        try:
            return original(learner, forest, forest.sites.streams["reference_logprobs"], *rest)
        finally:
            learner._kl = in_reward

    return loss


_FAULTS = (
    Fault(
        name="prompt_trained",
        mistake="The mask of trained tokens includes the prompt.",
        signal="The loss counts more tokens than the assistant wrote, and the model learns to ask questions.",
        place="lydian.text.plain:PlainTemplate.encode_conversation",
        wrong=_all_trained,
        guard=guards.sites_are_the_tokens_of_the_assistant,
    ),
    Fault(
        name="pad_trained",
        mistake="Sequences are padded to one length and the padding is trained.",
        signal="The loss counts more tokens than the assistant wrote, and looks good because padding is easy.",
        place="lydian.text.encode:encode_items",
        wrong=_padding_trained,
        guard=guards.sites_are_the_tokens_of_the_assistant,
    ),
    Fault(
        name="stop_token_not_trained",
        mistake="The token that ends a reply is left out of the mask.",
        signal="The model answers well and never stops: completions hit the limit on new tokens.",
        place="lydian.text.plain:PlainTemplate.encode_conversation",
        wrong=_last_not_trained,
        guard=guards.every_reply_trains_its_stop_token,
    ),
    Fault(
        name="shift_off_by_one",
        mistake="Each token is predicted from the hidden state that has already read it.",
        signal="Logprobs differ from the model's own by whole nats.",
        place="lydian.data.forest:_sites",
        wrong=_not_shifted,
        guard=guards.the_forest_agrees_with_one_sequence_at_a_time,
    ),
    Fault(
        name="mean_of_means",
        mistake="Each micro-batch takes the mean of its own tokens, and the means are averaged.",
        signal="Tokens of short replies weigh more, and the gradient depends on how a step is split.",
        place="lydian.training.learner:Learner._plant",
        wrong=_mean_of_means,
        guard=guards.any_split_gives_the_same_gradient,
    ),
    Fault(
        name="adapter_not_zero_at_start",
        mistake="Both matrices of a fresh LoRA adapter are random.",
        signal="Training starts from a damaged model: the first loss is far above the base's.",
        place="lydian.models.adapters:LoraConfig",
        wrong=_random_at_start,
        guard=guards.a_new_adapter_changes_nothing,
    ),
    Fault(
        name="merge_without_scale",
        mistake="The adapter is merged as W + B A, without the factor alpha / rank.",
        signal="The merged model answers differently from the one that was trained.",
        place="lydian.models.merge:_merged_weight",
        wrong=_unscaled,
        guard=guards.merged_weights_equal_the_adapter,
    ),
    Fault(
        name="base_not_frozen",
        mistake="The base under a LoRA adapter is trained as well.",
        signal="The saved adapter fits no base that anybody else can load.",
        place="lydian.models.load:add_adapter",
        wrong=_thawed,
        guard=guards.the_base_keeps_its_digest,
    ),
    Fault(
        name="reference_not_frozen",
        mistake="The reference policy shares its memory with the policy that is trained.",
        signal="The KL to the reference stays 0 however far the policy moves.",
        place="lydian.training.learner:Learner._copy_trainable",
        wrong=_not_copied,
        guard=guards.the_reference_stays_where_it_was,
    ),
    Fault(
        name="reference_with_dropout",
        mistake="The reference policy runs in training mode, with dropout.",
        signal="The first DPO loss is not log 2 = 0.69315.",
        place="lydian.training.learner:Learner._as_reference",
        wrong=_dropping_out,
        guard=guards.dpo_starts_at_log_two,
    ),
    Fault(
        name="chosen_and_rejected_swapped",
        mistake="Of each preference pair the rejected reply is taken for the chosen one.",
        signal="The reported margin rises and the model gets worse.",
        place="lydian.text.encode:encode_preference",
        wrong=_swapped,
        guard=guards.chosen_replies_gain_on_the_rejected,
    ),
    Fault(
        name="advantage_sign_flipped",
        mistake="The advantage enters the loss with the wrong sign.",
        signal="The reward falls, while the loss looks like any other.",
        place="lydian.training.credit:_with_advantage",
        wrong=_negated,
        guard=guards.rewarded_completions_gain_on_the_others,
    ),
    Fault(
        name="std_over_the_batch",
        mistake="Rewards are divided by the deviation of the whole batch, not of their group.",
        signal="Groups weigh unequally: their advantages do not have deviation 1.",
        place="lydian.objectives.advantage:_std",
        wrong=_over_the_batch,
        guard=guards.advantages_have_mean_0_and_deviation_1_in_each_group,
    ),
    Fault(
        name="temperature_ignored",
        mistake="Tokens sampled at temperature 0.6 are trained as if it had been 1.",
        signal="Sampler and learner disagree about the same tokens before any update.",
        place="lydian.training.credit:sequence_of",
        wrong=_at_temperature_one,
        guard=guards.the_sampler_agrees_with_the_learner,
    ),
    Fault(
        name="sampler_keeps_old_weights",
        mistake="The sampler takes the number of the new weights and keeps the old ones.",
        signal="Sampler and learner agree in the first round and drift apart from the second on.",
        place="lydian.rollout.local:LocalEngine.load",
        wrong=_version_only,
        guard=guards.the_sampler_agrees_with_the_learner,
    ),
    Fault(
        name="stale_logprobs",
        mistake="Logprobs of the proximal policy are reused from an earlier round.",
        signal="Ratios are not 1 at the first update of a round, and the clip cuts off good gradients.",
        place="lydian.training.learner:Learner._token_logprobs",
        wrong=_remembered,
        guard=guards.the_first_update_of_a_round_has_kl_zero,
    ),
    Fault(
        name="kl_counted_twice",
        mistake="The KL penalty is in the reward and once more in the loss.",
        signal="The policy stays twice as close to the reference as its coefficient says.",
        place="lydian.training.learner:Learner._loss",
        wrong=_penalised_again,
        guard=guards.with_kl_in_the_reward_the_loss_holds_no_other,
    ),
)

FAULTS: dict[str, Fault] = {fault.name: fault for fault in _FAULTS}
"""The faults by name, in the order of the pipeline: text, forest, model, preferences, rewards, sampling, updates."""
