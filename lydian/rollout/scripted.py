"""An engine that replays given completions: for tests of what comes after sampling, and for judging stored answers."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from lydian.data.trajectory import Completion, Finish
from lydian.errors import EngineError
from lydian.models.weights import Weights
from lydian.rollout.engine import Progress, Request


class ScriptedEngine:
    """Answers each problem with its scripted token ids, in order of the samples, with log-probability 0.

    script       problem id → one tuple of token ids a sample
    stop_tokens  a completion that does not end with one of these is reported as cut off (LENGTH)
    """

    def __init__(self, script: Mapping[str, Seq[tuple[int, ...]]], *, stop_tokens: frozenset[int]) -> None:
        self._script = script
        self._stop_tokens = stop_tokens
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    def load(self, weights: Weights) -> None:
        """Takes note of the version; the script stays."""
        self._version = weights.version

    def generate(self, requests: Seq[Request], progress: Progress | None = None) -> list[list[Completion]]:
        """The scripted completions. Raises EngineError where the script has none for a problem or sample."""
        results = [[self._completion(r, r.first_sample + k) for k in range(r.num_samples)] for r in requests]
        if progress:
            total = sum(map(len, results))
            progress(total, total)
        return results

    def _completion(self, request: Request, sample: int) -> Completion:
        samples = self._script.get(request.problem_id, ())
        if sample >= len(samples):
            raise EngineError(
                where=f"ScriptedEngine, problem {request.problem_id!r}",
                given=f"{len(samples)} scripted samples",
                expected=f"at least {sample + 1}",
                fix="Script every sample that will be asked for.",
            )
        tokens = samples[sample]
        return Completion(
            tokens=tokens,
            logprobs=(0.0,) * len(tokens),
            sampling=request.sampling,
            versions=((len(tokens), self._version),),
            finish=Finish.STOP if tokens[-1] in self._stop_tokens else Finish.LENGTH,
        )
