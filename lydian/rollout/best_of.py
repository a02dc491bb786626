"""Best-of-N: an engine that samples several completions of each prompt and gives the one a verifier scores best."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lydian.data.problems import Problem
from lydian.data.trajectory import Completion, Sampling
from lydian.errors import EngineError
from lydian.rollout.engine import Engine, Progress, Request
from lydian.text.template import Template
from lydian.verifiers.verifier import Verifier, verify_all

if TYPE_CHECKING:
    from lydian.models.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOf:
    """A policy of its own made from another without training: argmax over N samples of the verifier's score.

    engine       samples
    template     decodes for the verifier
    verifier     scores; of equal scores the first sample wins, one whose judgement FAILED never does unless all did
    problems     what requests ask, by id
    sampling     of the candidates; a request's own (greedy, as a rule) is not used
    num_samples  N

    Its logprobs are those of the candidates' distribution, not of the choice: nothing trains on them.
    Source: Stiennon et al. (2020), arXiv:2009.01325; Nakano et al. (2021), arXiv:2112.09332.
    """

    engine: Engine
    template: Template
    verifier: Verifier
    problems: Mapping[str, Problem]
    sampling: Sampling
    num_samples: int

    @property
    def version(self) -> int:
        """The weight version of the engine that samples."""
        return self.engine.version

    def load(self, weights: Weights) -> None:
        """Passes weights on."""
        self.engine.load(weights)

    def generate(self, requests: Seq[Request], progress: Progress | None = None) -> list[list[Completion]]:
        """The best of N for each request. Raises EngineError if more than one completion of a prompt is asked for."""
        if any(request.num_samples != 1 or request.first_sample for request in requests):
            raise EngineError(
                where="BestOf.generate",
                given="a request for several completions of one prompt",
                expected="one, the best",
                fix="Evaluate with num_samples = 1; the number of candidates is best_of_n's own num_samples.",
            )

        def counted(done: int, total: int) -> None:
            if progress is not None:  # who asked for one completion a request is told of as many
                progress(done // self.num_samples, total // self.num_samples)

        groups = self.engine.generate([self._candidates(request) for request in requests], counted)
        items = [
            (self.problems[request.problem_id], self.template.decode(completion.tokens), completion.finish)
            for request, group in zip(requests, groups, strict=True)
            for completion in group
        ]
        scores = iter([verdict.score for verdict in verify_all(self.verifier, items)])
        return [[_best(group, [next(scores) for _ in group])] for group in groups]

    def _candidates(self, request: Request) -> Request:
        return replace(request, num_samples=self.num_samples, sampling=self.sampling)


def _best(group: Seq[Completion], scores: Seq[float | None]) -> Completion:
    ranks = [(-float("inf") if score is None else score, -index) for index, score in enumerate(scores)]
    return group[-max(ranks)[1]]
