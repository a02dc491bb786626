"""STaR: problems that no sample solved are sampled again with the answer in the prompt, and trained on without it.

    problem ─▶ samples ─▶ one is correct ─▶ imitate it
                       └▶ none is: question + hint ─▶ samples ─▶ correct, and silent about the hint
                              ─▶ the problem's own prompt ids + the completion's ids ─▶ imitate them

Expert iteration learns nothing from a problem that it never solves; a hint turns searching for the answer into
explaining it. A completion is judged as an answer to the problem itself, and its ids are never encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from lydian.data.forest import Item
from lydian.data.problems import Message, Problem
from lydian.data.trajectory import Trajectory
from lydian.data.verdict import Group, Scored
from lydian.errors import RecipeError
from lydian.models.weights import Weights
from lydian.rollout.engine import Progress
from lydian.rollout.sample import sample, score
from lydian.training.collect import Collected, Rollouts, Source, derived_seed
from lydian.training.credit import Imitation
from lydian.training.settings import StageSettings

SUFFIX = "+hint"
"""Ends the ids of hinted problems: they are problems of their own in a round's samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rationalised:
    """Rollouts, and for each problem whose samples are all wrong as many samples with a hint.

    rollouts  their credit is an `Imitation`, whose rules hold for completions with a hint too: correct, distinct, at
              most so many a problem
    hint      text set behind the question; {answer} in it becomes the gold answer
    words     beginnings of words; a completion that has one, or the hint itself, speaks of the hint and is not kept

    A problem without a gold answer has no hint, and one whose samples could not be judged is not known to be unsolved.
    Raises RecipeError for rollouts that do not imitate what a verifier accepts.
    Source: Zelikman et al. (2022), arXiv:2203.14465, section 3.2 and algorithm 1.
    """

    rollouts: Rollouts
    hint: str
    words: tuple[str, ...] = ("hint",)

    def __post_init__(self) -> None:
        credit = self.rollouts.credit
        if self.rollouts.verifier is None or not isinstance(credit, Imitation):
            raise RecipeError(
                where="hint",
                given=f"a hint for samples that {type(credit).__name__} turns into what is trained on",
                expected="an algorithm that imitates its own correct completions",
                fix="Leave the hint out, or use star or expert_iteration.",
            )

    def load(self, weights: Weights) -> None:
        """Passes new weights to the rollouts."""
        self.rollouts.load(weights)

    def collect(self, round: int, progress: Progress | None = None) -> Collected:
        """The round's samples, then those with a hint.

        Metrics beside the rollouts': hinted, problems that were sampled with a hint; hinted_accuracy, share of the
        judged samples with a hint that are correct (`accuracy` is that of all samples without); hint_mentioned, share
        of those that are not kept because they speak of the hint; rationalised, share of what is trained on that came
        with a hint. Shares of nothing are left out.
        """
        collected = self.rollouts.collect(round, progress)
        unsolved = [group for group in collected.groups if _is_unsolved(group)]
        hinted = self._with_hint([group.problem for group in unsolved], round, progress)
        kept = [
            replace(group, members=members)
            for group, plain in zip(hinted, unsolved, strict=True)
            if (members := self._kept(group, plain.members[0].trajectory.turns[0].context))
        ]
        items = self.rollouts.credit.items(kept, {})
        num_judged = sum(member.verdict.score is not None for group in hinted for member in group.members)
        num_correct = sum(group.num_correct for group in hinted)
        metrics = {"hinted": float(len(hinted))}
        if num_judged:
            metrics["hinted_accuracy"] = num_correct / num_judged
        if num_correct:
            metrics["hint_mentioned"] = 1 - sum(group.num_correct for group in kept) / num_correct
        if items or collected.items:
            metrics["rationalised"] = len(items) / (len(items) + len(collected.items))
        return Collected(
            items=[*collected.items, *items],
            metrics=collected.metrics | metrics,
            groups=[*collected.groups, *hinted],
        )

    def assign(self, items: Seq[Item]) -> list[Item]:
        """Every kept completion counts the same."""
        return self.rollouts.assign(items)

    def _with_hint(self, problems: Seq[Problem], round: int, progress: Progress | None) -> list[Group]:
        """Samples with the hint in the prompt, judged as answers to the problems without it."""
        rollouts = self.rollouts
        if not problems or rollouts.verifier is None:
            return []
        plain = [replace(problem, id=problem.id + SUFFIX) for problem in problems]
        hinted = [replace(problem, messages=self._hinted(problem)) for problem in plain]
        sampling = replace(rollouts.sampling, seed=derived_seed(rollouts.seed, round, "hint"))
        trajectories = sample(
            rollouts.engine,
            rollouts.template,
            hinted,
            sampling,
            num_samples=rollouts.num_samples,
            progress=progress,
        )
        groups = score(plain, trajectories, rollouts.template, rollouts.verifier)
        return [replace(group, problem=problem) for group, problem in zip(groups, hinted, strict=True)]

    def _hinted(self, problem: Problem) -> tuple[Message, ...]:
        *before, last = problem.messages
        return (*before, replace(last, content=last.content + self._filled(problem)))

    def _filled(self, problem: Problem) -> str:
        return self.hint.replace("{answer}", problem.answer or "")

    def _kept(self, group: Group, prompt: tuple[int, ...]) -> tuple[Scored, ...]:
        """The correct members that are silent about the hint, as answers to the problem's own prompt."""
        hint = _folded(self._filled(group.problem))
        return tuple(
            replace(member, trajectory=_from_prompt(member.trajectory, prompt))
            for member in group.members
            if member.verdict.is_correct and not self._mentions(member.trajectory, hint)
        )

    def _mentions(self, trajectory: Trajectory, hint: str) -> bool:
        text = _folded(self.rollouts.template.decode(trajectory.turns[-1].completion.tokens))
        return hint in text or any(re.search(rf"(?<!\w){re.escape(_folded(word))}", text) for word in self.words)


def with_rationales(rollouts: Rollouts, settings: StageSettings) -> Source:
    """The rollouts of a stage; where its settings have a hint, with a second try at what they did not solve."""
    if not settings.hint:
        return rollouts
    return Rationalised(rollouts=rollouts, hint=settings.hint, words=settings.hint_words)


def _is_unsolved(group: Group) -> bool:
    """Judged and never solved, with a gold answer to give away."""
    is_judged = any(member.verdict.score is not None for member in group.members)
    return is_judged and group.num_correct == 0 and group.problem.answer is not None


def _from_prompt(trajectory: Trajectory, prompt: tuple[int, ...]) -> Trajectory:
    """The same completions after another prompt."""
    first, *rest = trajectory.turns
    return replace(trajectory, turns=(replace(first, context=prompt), *rest))


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
