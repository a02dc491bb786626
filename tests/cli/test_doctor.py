"""lydian doctor: what it finds, and what it does with something broken."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lydian.cli import doctor
from lydian.cli.doctor import Finding
from lydian.cli.main import app


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which all is well, whatever this one lacks."""
    monkeypatch.setattr(doctor, "LOOKS", {"python": doctor._python, "torch": doctor._torch, "memory": doctor._memory})


def test_a_whole_installation(looks: None) -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    findings = {row["name"]: row for row in json.loads(result.stdout)}
    assert findings["python"]["status"] == findings["torch"]["status"] == "ok"
    assert {"extra math", "extra gguf", "extra hub"} <= set(findings)


def test_everything_is_looked_at() -> None:
    """Each look works on this machine; the bundled model may be absent from a source tree."""
    for name, look in doctor.LOOKS.items():
        if name != "tiny model":
            finding = look()
            assert finding.name == name and finding.value and finding.status != "broken"


def test_something_broken_is_a_finding_and_exit_code_1(looks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Finding:
        raise ImportError("libgomp.so.1")

    monkeypatch.setitem(doctor.LOOKS, "torch", fails)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "broken  torch" in result.output and "ImportError: libgomp.so.1" in result.output
    assert "ok      python" in result.output


def test_a_missing_extra_comes_with_its_install_line(looks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "EXTRAS", {"math": ("no_such_module", "no-such", "the `math` verifier")})
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert "pip install 'lydian[math]'" in result.output
