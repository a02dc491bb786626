"""Which layers work here, and what a machine without one of the minimum is told."""

from __future__ import annotations

import sys
import time

import pytest

from lydian.errors import VerifierError
from lydian.verifiers.code import probe as sandbox_probe
from lydian.verifiers.code.probe import LAYERS, probe, working_layers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux's")


def test_a_machine_without_a_layer_of_the_minimum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    states = dict.fromkeys(LAYERS, "") | {"landlock": "OSError: not in this kernel"}
    monkeypatch.setattr(sandbox_probe, "probe", lambda: states)
    with pytest.raises(VerifierError, match=r"landlock.*not in this kernel"):
        working_layers()
    assert "landlock" not in working_layers(("limits", "seccomp"))
    with pytest.raises(VerifierError, match="selinux"):
        working_layers(("selinux",))


def test_the_probe_names_every_layer_and_is_made_once() -> None:
    states = probe()
    assert tuple(states) == LAYERS
    started = time.monotonic()
    assert probe() == states
    assert time.monotonic() - started < 0.05
