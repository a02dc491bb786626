"""A `Benchmark` owns everything that a score depends on besides the model: problems, template, sampling, verifier."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from lydian.data.problems import Problem, check_unique_ids, problems_digest
from lydian.data.trajectory import Sampling
from lydian.errors import InputError
from lydian.evaluation.records import EvalSpec
from lydian.verifiers.verifier import Verifier

if TYPE_CHECKING:
    from lydian.text.template import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """Problems to answer, and how they are put, sampled and judged: a frozen evaluator.

    name         for people; two benchmarks of different names may have equal specs
    problems     with unique ids, and gold answers that the verifier can read
    template     turns messages into the prompt's tokens
    sampling     temperature, limits, seed of the completions
    verifier     judges the completions
    num_samples  completions a problem; 1 if sampling is greedy, which would only repeat itself
    spec         the fingerprint of all this

    Raises, before a token is sampled: InputError for no problems or an impossible num_samples, DataError for ids that
    repeat, VerifierError for a gold answer that cannot be read.
    """

    name: str
    problems: tuple[Problem, ...]
    template: Template
    sampling: Sampling
    verifier: Verifier
    num_samples: int = 1
    spec: EvalSpec = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where = f"benchmark {self.name!r}"
        if not self.problems:
            raise InputError(where=where, given="no problems", expected="at least one", fix="Check the file or split.")
        if self.num_samples < 1 or (self.sampling.is_greedy and self.num_samples > 1):
            raise InputError(
                where=f"{where}, num_samples",
                given=f"{self.num_samples} at temperature {self.sampling.temperature}",
                expected="at least one sample a problem, and only one if greedy",
                fix="Set num_samples = 1, or a temperature above 0.",
            )
        check_unique_ids(self.problems, where=where)
        for problem in self.problems:
            self.verifier.check(problem)
        spec = EvalSpec(
            problems=problems_digest(self.problems),
            num_problems=len(self.problems),
            template=self.template.fingerprint,
            stop_tokens=tuple(sorted(self.template.stop_tokens)),
            sampling=_as_json_gives_it_back(self.sampling),
            num_samples=self.num_samples,
            verifier=self.verifier.fingerprint,
        )
        object.__setattr__(self, "spec", spec)


def _as_json_gives_it_back(sampling: Sampling) -> dict[str, object]:
    """The fields with one spelling each: a temperature of 1 and one of 1.0 are the same and must digest alike."""
    numbers = {key: float(getattr(sampling, key)) for key in ("temperature", "top_p", "min_p")}
    return asdict(sampling) | numbers | {"stop": list(sampling.stop)}
