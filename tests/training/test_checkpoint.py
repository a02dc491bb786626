"""Checkpoints: everything comes back bitwise, and what cannot be written or read is said, with nothing lost."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lydian.errors import RunError
from lydian.models.policy import Policy
from lydian.objectives.likelihood import nll
from lydian.training import checkpoint as module
from lydian.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from lydian.training.learner import Learner
from lydian.training.loop import Position
from lydian.training.optim import OptimiserSettings
from tests.training.toys import llama, pair, sequence


def learner() -> Learner:
    return Learner(
        Policy(llama()), objective=nll, normaliser="token_mean", optimiser=OptimiserSettings(learning_rate=1e-2)
    )


def checkpoint(**changes) -> Checkpoint:
    """The middle of a round, with numbers that decimal text would round."""
    streams = {"advantage": (0.1, 1 / 3, -2 / 3), "proximal_logprobs": (0.0, -1e-17, -3.3333333333333335)}
    one = replace(sequence("a", "b"), streams=streams, temperature=0.7, versions=((1, 3), (1, 4)))
    items = [one, pair(0, "a", "b", "c")]
    position = Position(round=1, step_in_round=2, step=5, items=items, metrics={"reward": 1 / 3})
    fields = {"stage": 2, "is_done": False, "position": position, "seconds": 1.5, "learner": {}}
    return Checkpoint(**fields | changes)


def test_everything_comes_back_equal(tmp_path: Path):
    path = tmp_path / "checkpoints" / "checkpoint.pt"
    save_checkpoint(path, checkpoint())
    assert load_checkpoint(path) == checkpoint()
    done = checkpoint(position=Position(round=4, step=9), is_done=True)
    save_checkpoint(path, done)
    assert load_checkpoint(path) == done
    assert [p.name for p in path.parent.iterdir()] == ["checkpoint.pt"]


def test_learners_state_comes_back_bitwise(tmp_path: Path):
    """A step, the file, and a step by another learner, against two steps at once: weights and moments."""
    items = [sequence("a", "b"), sequence("c", "d")]
    whole, first, second = learner(), learner(), learner()
    for progress in (0.0, 0.5):
        whole.accumulate(items)
        whole.step(progress)
    first.accumulate(items)
    first.step(0.0)
    save_checkpoint(tmp_path / "c.pt", checkpoint(learner=first.state()))
    stored = load_checkpoint(tmp_path / "c.pt")
    assert stored is not None
    second.load_state(stored.learner)
    second.accumulate(items)
    second.step(0.5)
    assert second.weights().digest == whole.weights().digest


def test_no_file_is_no_checkpoint(tmp_path: Path):
    assert load_checkpoint(tmp_path / "none.pt") is None


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "text", "format"])
def test_a_file_that_cannot_be_read_is_refused_and_left_alone(damage: str, tmp_path: Path):
    path = tmp_path / "c.pt"
    save_checkpoint(path, checkpoint())
    whole = path.read_bytes()
    damaged = {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"not a checkpoint"}
    if damage in damaged:
        path.write_bytes(damaged[damage])
    else:
        torch.save({"format": 99} if damage == "format" else [1, 2], path)
    before = path.read_bytes()
    with pytest.raises(RunError, match=r"c\.pt") as caught:
        load_checkpoint(path)
    assert caught.value.expected and "train" in caught.value.fix
    assert path.read_bytes() == before


def test_reading_runs_no_code_from_the_file(tmp_path: Path):
    """A pickle that would make a folder when read is refused."""

    class Trap:
        def __reduce__(self):
            return (Path.mkdir, (tmp_path / "made",))

    torch.save({"format": 1, "items": Trap()}, tmp_path / "c.pt")
    with pytest.raises(RunError):
        load_checkpoint(tmp_path / "c.pt")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("write failed")])
def test_a_full_disk_leaves_the_checkpoint_before(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Half a file is written when the disk is full."""
    path = tmp_path / "c.pt"
    save_checkpoint(path, checkpoint())

    def full(payload, file):
        file.write(b"half of it")
        raise error

    monkeypatch.setattr(module.torch, "save", full)
    with pytest.raises(RunError, match=r"--resume"):
        save_checkpoint(path, checkpoint(stage=3))
    assert load_checkpoint(path) == checkpoint()
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]
