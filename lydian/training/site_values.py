"""What an objective may ask for at the sites of a forest, by name, computed once for all that need it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lydian.data.forest import Forest
from lydian.errors import RunError
from lydian.models.policy import Policy
from lydian.models.teacher import Teacher
from lydian.objectives.logprobs import token_logprobs
from lydian.objectives.loss import Loss

CHUNK_ELEMENTS = 1 << 22
"""Logits in fp32 that objectives of whole distributions get at a time; they make several more tensors of each."""


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits [n, v] that are made only for the rows that are asked for: `logits[rows] = hidden[rows] · outputᵀ`.

    hidden  [n, d] states that predict
    output  [v, d] output matrix, its first v rows
    dtype   of the product; the result is in fp32
    """

    hidden: Float[Tensor, "n d"]
    output: Float[Tensor, "v d"]
    dtype: torch.dtype

    def __getitem__(self, rows: slice) -> Float[Tensor, "k v"]:
        return (self.hidden[rows].to(self.dtype) @ self.output.to(self.dtype).T).float()


def site_values(
    policy: Policy,
    forest: Forest,
    needs: Collection[str],
    *,
    teacher: Teacher | None = None,
    teacher_hidden: Float[Tensor, "n e"] | None = None,
) -> dict[str, Any]:
    """The names that can be had from the policy, its teacher and the forest, as far as they are needed.

    sequence, streams, facts        of the forest itself
    logprobs, entropy               of the policy at each site, at the temperature that the site was sampled at
    log_collision                   log Σ_v π(v)², constant
    value, score, class_logits      of the policy's head
    logits, teacher_logits          `Logits` over the shared vocabulary, at temperature 1 whatever the sampling's
    teacher_logprobs                of the teacher at each site, constant, at the site's temperature as `logprobs`

    teacher_hidden  `teacher.hidden` of this forest

    All are tensors but `Logits`, which `per_site_loss` makes in chunks. What needs no vocabulary product, a reward
    model for one, gets none.
    """
    sites = forest.sites
    values: dict[str, Any] = {"sequence": sites.sequence, **sites.streams, **forest.facts}
    states = policy.states(forest)
    if policy.head is not None and policy.head.output in needs:
        values[policy.head.output] = policy.head.at_sites(states, sites)
    if "logprobs" in needs or "entropy" in needs:
        values["logprobs"], values["entropy"] = policy.site_logprobs(states[sites.source], sites)
    if "log_collision" in needs:
        values["log_collision"] = policy.site_log_collision(states[sites.source], sites)
    if teacher is not None and teacher_hidden is not None:
        output = teacher.policy.output.weight[: teacher.num_tokens]
        if "logits" in needs:
            own = policy.output.weight[: teacher.num_tokens]
            values["logits"] = Logits(states[sites.source], own, _product_dtype(policy))
            values["teacher_logits"] = Logits(teacher_hidden, output, _product_dtype(teacher.policy))
        if "teacher_logprobs" in needs:
            hidden = teacher_hidden.to(output.dtype)
            with torch.no_grad():
                values["teacher_logprobs"] = token_logprobs(hidden, output, sites.target, sites.temperature)[0]
    return values


def per_site_loss(objective: Callable[..., Loss], arguments: Seq[Any], *, chunk_elements: int = CHUNK_ELEMENTS) -> Loss:
    """The objective of its arguments; where these have `Logits`, a chunk of sites at a time.

    arguments       one an argument of the objective; beside `Logits` all have one row a site
    chunk_elements  logits of one policy that exist at a time

    Each chunk is computed again in the backward pass, so that no logits outlive it. Exact, since what takes whole
    distributions is a loss of each site by itself.
    """
    lazy = [argument for argument in arguments if isinstance(argument, Logits)]
    if not lazy:
        return objective(*arguments)
    num_sites, num_rows = lazy[0].hidden.shape[0], max(1, chunk_elements // lazy[0].output.shape[0])

    def chunk(start: int) -> Loss:
        rows = slice(start, start + num_rows)
        return objective(*(argument[rows] for argument in arguments))

    parts = [
        checkpoint(chunk, start, use_reentrant=False, preserve_rng_state=False)
        for start in range(0, num_sites, num_rows)
    ]
    statistics = {name: torch.cat([part.statistics[name] for part in parts]) for name in parts[0].statistics}
    return Loss(torch.cat([part.loss for part in parts]), statistics)


def _product_dtype(policy: Policy) -> torch.dtype:
    return torch.bfloat16 if policy.compute_dtype == torch.bfloat16 else policy.output.weight.dtype


def required_teacher(teacher: Teacher | None, needs: Seq[str]) -> Teacher | None:
    """The teacher, if the objective asks for one. Raises RunError if it does and there is none."""
    asked = [name for name in needs if name in ("teacher_logits", "teacher_logprobs")]
    if asked and teacher is None:
        raise RunError(
            where="Learner",
            given=f"an objective that asks for {asked[0]}, and no teacher",
            expected="a teacher",
            fix="Set the stage's `teacher` to a folder, a model's name, or stage:NAME.",
        )
    return teacher if asked else None
