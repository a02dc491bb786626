"""Resumable state on disk: one file, replaced whole, read back without running any code from it."""

from __future__ import annotations

import os
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lydian.data.forest import Item
from lydian.data.sequence import Pair, Sequence
from lydian.errors import RunError
from lydian.training.loop import Drift, Position

FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where a run stands.

    stage     index of the stage, 1 for the first
    is_done   the stage's training is over
    position  within the stage
    seconds   spent in the stage so far
    learner   `Learner.state()`
    """

    stage: int
    is_done: bool
    position: Position
    seconds: float
    learner: dict[str, Any]


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes the checkpoint; after a kill or on a full disk the file before it is still there.

    Raises RunError if it cannot be written.
    """
    position = checkpoint.position
    payload = {
        "format": FORMAT,
        "stage": checkpoint.stage,
        "is_done": checkpoint.is_done,
        "round": position.round,
        "step_in_round": position.step_in_round,
        "step": position.step,
        "items": None if position.items is None else [_plain(item) for item in position.items],
        "metrics": dict(position.metrics),
        "drift": asdict(position.drift),
        "seconds": checkpoint.seconds,
        "learner": checkpoint.learner,
    }
    draft = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            torch.save(payload, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        draft.unlink(missing_ok=True)
        raise RunError(
            where=str(path),
            given=f"{type(error).__name__}: {error}",
            expected="room to write a checkpoint",
            fix="The checkpoint before this one is whole: free some space and go on with `lydian run --resume`.",
        ) from error


def load_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in the file; None if there is no file. Raises RunError if it cannot be read."""
    if not path.exists():
        return None
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
        if payload["format"] != FORMAT:
            raise ValueError(f"format {payload['format']}, this version reads {FORMAT}")
        items = payload["items"]
        position = Position(
            round=payload["round"],
            step_in_round=payload["step_in_round"],
            step=payload["step"],
            items=None if items is None else [_item(item) for item in items],
            metrics=payload.get("metrics", {}),
            drift=Drift(**payload.get("drift", {})),
        )
        return Checkpoint(
            stage=payload["stage"],
            is_done=payload["is_done"],
            position=position,
            seconds=payload["seconds"],
            learner=payload["learner"],
        )
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise RunError(
            where=str(path),
            given=f"{type(error).__name__}: {error}",
            expected="a checkpoint of this version of Lydian",
            fix="Restore the file; or delete it, and the run trains again from its first stage.",
        ) from error


def _plain(item: Item) -> dict[str, Any]:
    """Only what torch's safe unpickler takes."""
    if isinstance(item, Pair):
        return {"chosen": _plain(item.chosen), "rejected": _plain(item.rejected)}
    return asdict(item)


def _item(plain: dict[str, Any]) -> Item:
    if "chosen" in plain:
        return Pair(chosen=Sequence(**plain["chosen"]), rejected=Sequence(**plain["rejected"]))
    return Sequence(**plain)
