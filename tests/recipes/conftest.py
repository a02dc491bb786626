"""What the tests of recipes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from lydian.models.fresh import tiny_untrained


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny-untrained`, written down: its tokenizer need not be trained again for each run."""
    folder = tmp_path_factory.mktemp("models") / "untrained"
    network, tokenizer = tiny_untrained()
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
