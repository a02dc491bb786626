"""Reference logprobs of a fixed corpus, measured once, kept in a file, and refused for anything else.

    corpus + reference policy ─▶ log π_reference of each trained token ─▶ stream `reference_logprobs` ─▶ each step
                                   (one forward pass in all)                 (instead of one forward pass each)

The file says what it was measured with. Another reference policy, template or corpus is an error that names what
differs: numbers of one policy that pass for those of another spoil a run without a sign.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from lydian.data.forest import Item, sequences_of
from lydian.errors import RunError
from lydian.models.weights import tensors_digest
from lydian.training.learner import Learner
from lydian.training.settings import StageSettings
from lydian.training.step_facts import with_stream

STREAM: Final = "reference_logprobs"


def with_reference_logprobs(
    items: Seq[Item], learner: Learner, settings: StageSettings, *, path: Path, template: str
) -> list[Item]:
    """A corpus with the reference's logprobs, from the file `path` or measured now and written there.

    items     of a fixed corpus
    learner   whose reference policy is meant, as it is at the stage's start
    template  fingerprint of the template that encoded the corpus

    The items are given back as they are unless the settings cache the logprobs of a reference that stays, and the
    learner has one. Raises RunError if the file is of another reference, template or corpus, or cannot be read.
    """
    if learner.reference is None or settings.reference_logprobs == "live" or settings.reference == "round":
        return list(items)
    facts = reference_facts(items, learner, template)
    if path.exists():
        return with_stream(items, STREAM, _read(path, facts, items))
    known = learner.with_reference_logprobs(items)
    _write(path, facts, known)
    return known


def reference_facts(items: Seq[Item], learner: Learner, template: str) -> dict[str, str]:
    """What reference logprobs depend on, as digests by name.

    reference    all weights of the reference policy, frozen ones too
    computation  the numbers that the policy computes in, and how batches are laid out for it
    template     the fingerprint that is given
    corpus       ids, tokens, trained places and temperatures, in order
    """
    assert learner.reference is not None
    policy = learner.policy
    weights = dict(policy.model.named_parameters()) | dict(learner.reference)
    corpus = hashlib.sha256()
    for s in sequences_of(items):
        corpus.update(json.dumps([s.id, s.tokens, s.trained, s.temperature]).encode())
    return {
        "reference": tensors_digest(weights),
        "computation": f"{policy.compute_dtype}, {policy.layout}",
        "template": template,
        "corpus": corpus.hexdigest(),
    }


def _write(path: Path, facts: Mapping[str, str], items: Seq[Item]) -> None:
    """One file, replaced whole: a killed run leaves the one before it, or none."""
    values = torch.tensor(
        [v for s in sequences_of(items) for v in itertools.compress(s.streams[STREAM], s.trained)], dtype=torch.float64
    )
    draft = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({STREAM: values}, draft, metadata=dict(facts))
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)


def _read(path: Path, facts: Mapping[str, str], items: Seq[Item]) -> dict[str, list[float]]:
    try:
        with safe_open(path, framework="pt") as file:
            found: Mapping[str, str] = file.metadata() or {}
            values: Iterator[float] = iter(file.get_tensor(STREAM).tolist())
    except (OSError, SafetensorError) as error:
        raise _refused(path, f"{type(error).__name__}: {error}", "a file of reference logprobs") from error
    for name, wanted in facts.items():
        if found.get(name) != wanted:
            given = f"reference logprobs of another {name}: {found.get(name, 'unknown')[:80]}"
            raise _refused(path, given, f"those of this stage's {name}: {wanted[:80]}")
    return {s.id: list(itertools.islice(values, s.num_trained)) for s in sequences_of(items)}


def _refused(path: Path, given: str, expected: str) -> RunError:
    return RunError(
        where=str(path),
        given=given,
        expected=expected,
        fix="Delete the file to measure them again, or undo what changed since it was written.",
    )
