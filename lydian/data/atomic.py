"""Whole writes: a file is the new one or, whatever stopped us, the old one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Replaces the file, or makes it and its folder, also if the machine stops here; UTF-8, line ends as they are.

    Raises OSError, for example where the disk is full; the file is then as it was, and no draft is left.
    """
    draft = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself survives a power cut only when the folder is on disk
    finally:
        os.close(folder)
