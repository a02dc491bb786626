"""The learner: accumulate, step, publish. It knows no algorithm; an objective's parameter names say what it needs.

Rules that live here and nowhere else: the only `backward`; the only reduction, Σ weight · loss; the only place that
mints a weight version; the reference policy is the weights in memory when the learner was made or asked to reset it.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lydian.data.forest import Forest, Item, Normaliser, plant, sequences_of, site_weights
from lydian.data.sequence import Pair
from lydian.errors import RunError
from lydian.models.adapters import is_idle, switched_off
from lydian.models.heads import OUTPUTS
from lydian.models.policy import Policy
from lydian.models.teacher import Teacher
from lydian.models.weights import Weights, weights_of
from lydian.objectives import divergence
from lydian.objectives.correction import mean_weight
from lydian.objectives.loss import Loss
from lydian.training.optim import OptimiserSettings, make_optimiser
from lydian.training.site_values import per_site_loss, required_teacher, site_values
from lydian.training.step_facts import STEP_FACTS, with_step_facts, with_stream
from lydian.training.step_statistics import StepStatistics
from lydian.training.terms import KL, Correction, EntropyBonus, KLInLoss, KLInReward, correction_weights

Anchor = Literal["recomputed", "behaviour"]
Reference = Literal["start", "round"]
ReferenceLogprobs = Literal["live", "cached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How a step is cut into forward passes; changes speed and memory, never the gradient.

    batch_tokens  budget of one forward and backward pass, whose rows are padded to the longest
    row_tokens    budget of one row of packed trees; by default, and at most, batch_tokens: a pass of one row pads
                  nothing. Of a group that is larger than a row, the prompt is computed more than once
    """

    batch_tokens: int = 2048
    row_tokens: int | None = None


class Learner:
    """Trains a policy on sequences or pairs.

    policy      the policy whose trainable parameters are updated
    objective   a function of `lydian.objectives` with its settings bound; its positional parameters name what it needs
    normaliser  how trained tokens weigh in a step, see `site_weights`
    constant    the constant of the `constant` normaliser
    kl          penalty for leaving the reference policy, which is the weights in memory now
    entropy     bonus for entropy
    correction  weights for tokens that another policy or engine sampled; their product counts
    anchor      the proximal policy of objectives that clip: `recomputed` with these weights at the round's start
                (decoupled from the sampler), or `behaviour`, the sampler's own logprobs (the ratio then holds the whole
                gap, so corrections other than `reject` are measured and not applied)
    teacher     of objectives that ask for teacher_logits or teacher_logprobs; frozen
    reference_logprobs  `live`: measured at each step; `cached`: once a round, by `with_fixed_policies`
    can_restart  keep the weights in memory now, for `restart`
    """

    def __init__(
        self,
        policy: Policy,
        *,
        objective: Callable[..., Loss],
        normaliser: Normaliser,
        optimiser: OptimiserSettings,
        constant: float | None = None,
        kl: KL | None = None,
        entropy: EntropyBonus | None = None,
        correction: Seq[Correction] = (),
        anchor: Anchor = "recomputed",
        batching: Batching | None = None,
        version: int = 0,
        teacher: Teacher | None = None,
        reference_logprobs: ReferenceLogprobs = "live",
        can_restart: bool = False,
    ) -> None:
        self.policy = policy
        self.version = version
        self.needs = required_names(objective)
        is_of_tokens = bool({"logprobs", "entropy"} & set(self.needs)) or not set(OUTPUTS) & set(self.needs)
        self._asked = {*self.needs, "logprobs", "entropy"} if is_of_tokens else set(self.needs)
        self._objective = objective
        self._teacher = required_teacher(teacher, self.needs)
        self._normaliser: Normaliser = normaliser
        self._constant = constant
        self._kl = kl
        self._entropy = entropy
        self._entropy_coef = entropy.coef if entropy else 0.0
        self._correction = tuple(correction)
        self._anchor = anchor
        self._batching = batching or Batching()
        self._settings = optimiser
        self._trainable = policy.trainable()
        self._optimiser = make_optimiser(self._trainable.values(), optimiser)
        needs_reference = kl is not None or "reference_logprobs" in self.needs
        self._reference = self._copy_trainable() if needs_reference else None
        self._is_reference_cached = needs_reference and reference_logprobs == "cached"
        self._start = self._copy_trainable() if can_restart else None
        self._last_facts: dict[str, float] = {}

    def accumulate(self, items: Seq[Item]) -> dict[str, float]:
        """Adds the gradient of one whole optimiser step's items; returns statistics, means over sites.

        Sequences whose advantage is zero everywhere are weighed (they stand in every denominator) but not computed:
        their gradient is zero unless a KL penalty, an entropy bonus or a value loss pulls on them.
        """
        weights = site_weights(items, self._normaliser, constant=self._constant)
        items = self._with_step_facts(items)
        forests = self._plant([item for item in items if self._has_signal(item)], weights)
        references = self._reference_logprobs(forests)
        normaliser = self._correction_normaliser(forests)
        step = StepStatistics()
        taught = self._teacher_hidden(forests, items)
        for forest, reference, teacher_hidden in zip(forests, references, taught, strict=True):
            loss, statistics = self._loss(forest, reference, teacher_hidden, normaliser, step)
            loss.backward()
            step.add(loss.item(), statistics)
        return self._finished(step)

    def step(self, progress: float) -> dict[str, float]:
        """Applies the accumulated gradient and clears it. `progress` in [0, 1] places the step in the stage's schedule.

        Raises RunError on a gradient that is not finite; the weights are then as before the step.
        """
        rate = self._settings.learning_rate_at(progress)
        if all(p.grad is None for p in self._trainable.values()):  # an update would only apply old momentum
            return {"learning_rate": rate, "gradient_norm": 0.0}
        limit = self._settings.max_gradient_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self._trainable.values(), limit).item()
        if not math.isfinite(norm):
            raise RunError(
                where="Learner.step",
                given=f"a gradient norm of {norm}, first in {self._first_nonfinite()}",
                expected="a finite gradient",
                fix="Lower the learning rate, or look at the last step's sequences with `lydian show`.",
            )
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return {"learning_rate": rate, "gradient_norm": norm}

    def publish(self) -> Weights:
        """Mints the next version: the model's tensors as they are now, adapters merged, never to change again."""
        self.version += 1
        return self.weights()

    def weights(self) -> Weights:
        """The current weights under the version last minted."""
        return weights_of(self.policy.model, self.version)

    @property
    def reference(self) -> Mapping[str, Tensor] | None:
        """The trainable weights of the reference policy; None where nothing asks for one."""
        return self._reference

    def reset_reference(self) -> None:
        """From now on the reference policy, where there is one, is the weights as they are now."""
        self._reference = self._copy_trainable() if self._reference is not None else None

    def restart(self) -> None:
        """Back to the weights that the learner was made with, and a new optimiser."""
        assert self._start is not None  # made with can_restart
        load_trainable(self._trainable, self._start)
        self._optimiser = make_optimiser(self._trainable.values(), self._settings)
        self._entropy_coef = self._entropy.coef if self._entropy else 0.0
        self._last_facts = {}

    def with_fixed_policies(self, items: Seq[Item], *, num_steps: int) -> list[Item]:
        """A new round's items with the logprobs that stay fixed while it is trained on, where they are needed.

        proximal_logprobs   log π of the weights as they are now; with a single step the current logprobs are the same,
                            so no second forward pass is made for them
        reference_logprobs  of the reference policy, for a KL in the reward or where they are cached
        """
        items = list(items)
        is_folded = isinstance(self._kl, KLInReward)
        is_clipped = "proximal_logprobs" in self.needs and self._anchor == "recomputed"
        is_normalised = any(correction.normalise for correction in self._correction)
        if items and (is_folded or is_normalised or (is_clipped and num_steps > 1)):
            items = with_stream(items, "proximal_logprobs", self._token_logprobs(items))
        return self.with_reference_logprobs(items) if is_folded or self._is_reference_cached else items

    def with_reference_logprobs(self, items: Seq[Item]) -> list[Item]:
        """The items with the stream `reference_logprobs`; as they are if all have it."""
        if all("reference_logprobs" in sequence.streams for sequence in sequences_of(items)):
            return list(items)
        with self._as_reference():
            return with_stream(items, "reference_logprobs", self._token_logprobs(items))

    def measured(self, items: Seq[Item], measure: Callable[[Forest], Tensor]) -> dict[str, list[Any]]:
        """What `measure` gives at each site of a forest, without gradient: by sequence id, in token order."""
        result: dict[str, list[Any]] = {}
        for forest in self._plant(items, dict.fromkeys((s.id for s in sequences_of(items)), 1.0)):
            with torch.no_grad():
                values = measure(forest).tolist()
            for index, value in zip(forest.sites.sequence.tolist(), values, strict=True):
                result.setdefault(forest.sequence_ids[index], []).append(value)
        return result

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs to go on bitwise: weights, moments, reference, version."""
        return {
            "trainable": self._copy_trainable(),
            "optimiser": self._optimiser.state_dict(),
            "reference": self._reference,
            "start": self._start,
            "entropy_coef": self._entropy_coef,
            "last_facts": dict(self._last_facts),
            "version": self.version,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` gave."""
        load_trainable(self._trainable, state["trainable"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._reference = state["reference"]
        self._start = state["start"]
        self._entropy_coef = state["entropy_coef"]
        self._last_facts = dict(state["last_facts"])
        self.version = state["version"]

    def _plant(self, items: Seq[Item], weights: Mapping[str, float]) -> list[Forest]:
        forests = plant(
            items,
            weights,
            layout=self.policy.layout,
            batch_tokens=self._batching.batch_tokens,
            row_tokens=self._batching.row_tokens,
        )
        return [forest.to(self.policy.device) for forest in forests]

    def _has_signal(self, item: Item) -> bool:
        is_pulled = isinstance(self._kl, KLInLoss) or self._entropy is not None or "value" in self.needs
        return is_pulled or isinstance(item, Pair) or any(item.streams.get("advantage", (1.0,)))

    def _with_step_facts(self, items: Seq[Item]) -> Seq[Item]:
        """The items with what couples a whole step (KTO's KL, AOT's partners, …), where the objective needs it."""
        names = [name for name in self.needs if name in STEP_FACTS]
        if not names:
            return items
        beta = inspect.signature(self._objective).parameters["beta"].default
        return with_step_facts(items, names, self._sequence_logprobs, beta=beta, last=self._last_facts)

    def _sequence_logprobs(self, items: Seq[Item]) -> tuple[Tensor, Tensor]:
        """Σ_t log π and Σ_t log π_reference of each sequence, without gradient."""
        current, sequences = self._token_logprobs(items), sequences_of(self.with_reference_logprobs(items))
        reference = [sum(itertools.compress(s.streams["reference_logprobs"], s.trained)) for s in sequences]
        return torch.tensor([sum(current[s.id]) for s in sequences]), torch.tensor(reference)

    def _loss(
        self,
        forest: Forest,
        reference: Tensor | None,
        teacher_hidden: Tensor | None,
        normaliser: float,
        step: StepStatistics,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        sites = forest.sites
        known = site_values(self.policy, forest, self._asked, teacher=self._teacher, teacher_hidden=teacher_hidden)
        logprobs, entropy = known.get("logprobs"), known.get("entropy")
        behaviour = sites.streams.get("behaviour_logprobs")
        if logprobs is not None:
            proximal = sites.streams.get("proximal_logprobs", logprobs.detach())  # one step a round: it is the current
            known["proximal_logprobs"] = proximal if self._anchor == "recomputed" or behaviour is None else behaviour
        if reference is not None:
            known["reference_logprobs"] = reference
        self._require(known)
        per_site, statistics = per_site_loss(self._objective, [known[name] for name in self.needs])
        if logprobs is None or entropy is None:
            return (sites.weight * per_site).sum(), statistics
        statistics = {**statistics, "entropy": entropy.detach()}
        if behaviour is not None:
            weight = self._correction_weights(behaviour, proximal, sites.sequence) / normaliser
            step.add_gap(forest, behaviour, proximal, weight)
            per_site = per_site * weight if self._correction else per_site
        if isinstance(self._kl, KLInLoss) and reference is not None:
            penalty = getattr(divergence, self._kl.estimator)(logprobs, reference)
            per_site = per_site + self._kl.coef * penalty
            statistics["kl_reference"] = penalty.detach()
        if self._entropy is not None:
            per_site = per_site - self._entropy_coef * entropy
        return (sites.weight * per_site).sum(), statistics

    def _require(self, known: Mapping[str, Tensor]) -> None:
        missing = [name for name in self.needs if name not in known]
        if missing:
            raise RunError(
                where=f"objective {getattr(self._objective, '__name__', self._objective)}",
                given=f"sequences without {', '.join(missing)}",
                expected=f"all of {', '.join(self.needs)}",
                fix="Use an algorithm whose credit assignment provides them, or add the streams to the sequences.",
            )

    def _correction_weights(self, behaviour: Tensor, proximal: Tensor, sequence: Tensor) -> Tensor:
        only_rejects = self._anchor == "behaviour" and "proximal_logprobs" in self.needs
        return correction_weights(self._correction, behaviour, proximal, sequence, only_rejects=only_rejects)

    def _correction_normaliser(self, forests: Seq[Forest]) -> float:
        """The mean correction weight over all sites of the step, or 1 where nothing is to be normalised."""
        if not forests or not any(correction.normalise for correction in self._correction):
            return 1.0
        columns = []
        num_sequences = 0
        for forest in forests:
            sequence, streams = forest.sites.sequence, forest.sites.streams
            weights = self._correction_weights(streams["behaviour_logprobs"], streams["proximal_logprobs"], sequence)
            columns.append((weights, sequence + num_sequences))
            num_sequences += len(forest.sequence_ids)
        weights, sequence = (torch.cat(column) for column in zip(*columns, strict=True))
        mean = mean_weight(weights, sequence, level=self._correction[0].level)
        return mean.item() or 1.0  # all rejected: nothing to normalise

    def _finished(self, step: StepStatistics) -> dict[str, float]:
        """The step's statistics; the entropy bonus follows the entropy that was measured."""
        statistics = step.summary(self._correction[0] if self._correction else None)
        if self._entropy is not None and statistics:
            statistics["entropy_coef"] = self._entropy_coef
            self._entropy_coef = self._entropy.next_coef(self._entropy_coef, statistics["entropy"])
        return statistics

    def _reference_logprobs(self, forests: list[Forest]) -> list[Tensor] | list[None]:
        if self._reference is None or isinstance(self._kl, KLInReward):
            return [None] * len(forests)
        if all("reference_logprobs" in forest.sites.streams for forest in forests):
            return [forest.sites.streams["reference_logprobs"] for forest in forests]
        with self._as_reference(), torch.no_grad():
            return [self.policy.logprobs(forest)[0] for forest in forests]

    def _teacher_hidden(self, forests: Seq[Forest], items: Seq[Item]) -> Iterator[Tensor | None]:
        """The teacher's states at each forest's sites, one forest at a time."""
        sequences = {sequence.id: sequence for sequence in sequences_of(items)}
        for forest in forests:
            yield None if self._teacher is None else self._teacher.hidden(forest, sequences)

    def _token_logprobs(self, items: Seq[Item]) -> dict[str, list[float]]:
        """log π of the trained tokens of each sequence, by id, in token order."""
        return self.measured(items, lambda forest: self.policy.logprobs(forest)[0])

    @contextlib.contextmanager
    def _as_reference(self) -> Iterator[None]:
        assert self._reference is not None
        if is_idle(self.policy.model, self._reference):
            with switched_off(self.policy.model):
                yield
            return
        current = self._copy_trainable()
        load_trainable(self._trainable, self._reference)
        try:
            yield
        finally:
            load_trainable(self._trainable, current)

    def _copy_trainable(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self._trainable.items()}

    def _first_nonfinite(self) -> str:
        bad = (name for name, p in self._trainable.items() if p.grad is not None and not p.grad.isfinite().all())
        return next(bad, "no single parameter")


def required_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The positional parameters of an objective or advantage, settings left out: the data it needs."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, p in inspect.signature(function).parameters.items() if p.kind in kinds)


@torch.no_grad()
def load_trainable(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copies values into parameters of the same names. Raises RunError if the names differ."""
    if parameters.keys() != values.keys():
        odd = sorted(parameters.keys() ^ values.keys())
        raise RunError(
            where="trainable parameters",
            given=f"{len(odd)} names on one side only, {odd[:3]}",
            expected="the same names in the checkpoint and the model",
            fix="Resume with the model and adapter settings that the run was started with.",
        )
    for name, parameter in parameters.items():
        parameter.copy_(values[name])
