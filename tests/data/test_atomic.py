"""A write that stops in the middle leaves the old file and no draft."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lydian.data.atomic import write_atomically


def test_the_file_is_replaced_whole_and_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "x.json"
    write_atomically(path, "old\n")
    write_atomically(path, "new é\n")
    assert path.read_bytes() == "new é\n".encode()
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_a_write_that_stops_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]
