"""The contract between whatever samples completions and whatever trains on them: token ids in, completions out."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lydian.data.trajectory import Completion, Sampling

if TYPE_CHECKING:
    from lydian.models.weights import Weights

Progress = Callable[[int, int], None]
"""Called with (completions finished, completions asked for)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Ask for `num_samples` completions of one prompt.

    `problem_id` with the sample's index and `sampling.seed` fixes the random numbers: the same request gives the same
    sample whatever it is batched with. `first_sample` is the index of the first of them.
    """

    problem_id: str
    prompt: tuple[int, ...]
    num_samples: int
    sampling: Sampling
    first_sample: int = 0


class Engine(Protocol):
    """Samples completions with some version of the weights.

    Conformance (tests/contracts/test_engines.py): the logprobs are those of the sampling distribution and equal the
    learner's for the same tokens at any temperature; `versions` name the weights that drew each token, also across a
    `load`; the stop token is part of the completion; finish is STOP, LENGTH or ABORT.
    """

    @property
    def version(self) -> int:
        """The weight version that the next token will be drawn with."""
        ...

    def load(self, weights: Weights) -> None:
        """From now on sample with these weights."""
        ...

    def generate(self, requests: Seq[Request], progress: Progress | None = None) -> list[list[Completion]]:
        """Completions for each request, in order: result[r][k] is sample `first_sample + k` of request r."""
        ...
