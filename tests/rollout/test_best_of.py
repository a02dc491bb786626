"""Best-of-N as an engine: the best of its candidates, by hand, and what it says while it samples."""

from __future__ import annotations

import pytest

from lydian.data.trajectory import Sampling
from lydian.errors import EngineError
from lydian.rollout.best_of import BestOf
from lydian.rollout.engine import Request
from lydian.rollout.scripted import ScriptedEngine
from lydian.verifiers import make_verifier
from tests.training.toys import STOP, Letters, ids_of, problem

SCRIPT = {
    "p": [(*ids_of(reply), STOP) for reply in ("z", "b", "c")],
    "q": [(*ids_of(reply), STOP) for reply in ("y", "z", "x")],
}


def best_of(num_samples: int = 3) -> BestOf:
    return BestOf(
        engine=ScriptedEngine(SCRIPT, stop_tokens=Letters.stop_tokens),
        template=Letters(),
        verifier=make_verifier("pattern", pattern="[a-o]"),
        problems={name: problem(name) for name in SCRIPT},
        sampling=Sampling(max_tokens=3),
        num_samples=num_samples,
    )


def requests(num_samples: int = 1) -> list[Request]:
    greedy = Sampling(max_tokens=3, temperature=0.0)
    return [Request(problem_id=name, prompt=ids_of(name), num_samples=num_samples, sampling=greedy) for name in SCRIPT]


def test_the_best_is_chosen_and_the_first_of_equals():
    """Of p's replies b and c match, b came first; of q's none does, so that y, the first, is as good as any."""
    told: list[tuple[int, int]] = []
    chosen = best_of().generate(requests(), lambda done, total: told.append((done, total)))
    assert [Letters().decode(completion.tokens) for (completion,) in chosen] == ["b", "y"]
    assert told == [(2, 2)]  # of what was asked for, not of the six candidates
    assert [Letters().decode(c.tokens) for (c,) in best_of(1).generate(requests())] == ["z", "y"]


def test_several_of_one_prompt_are_refused():
    with pytest.raises(EngineError, match="one, the best"):
        best_of().generate(requests(num_samples=2))
