"""The scripts run as a reader would run them, and the tiny model learns from each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def numbers_printed(script: str, pattern: str) -> list[float]:
    """What the pattern's group matches in the output of a script, line by line."""
    done = subprocess.run(
        [sys.executable, f"examples/{script}.py"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [float(number) for number in re.findall(pattern, done.stdout)]


@pytest.mark.slow
def test_sft():
    before, after = numbers_printed("sft", r"held-out loss \w+: ([\d.]+)")
    assert after < before


@pytest.mark.slow
def test_expert_iteration():
    correct = numbers_printed("expert_iteration", r"(\d+) of \d+ samples correct")
    assert len(correct) == 4
    assert correct[-1] > correct[0]


@pytest.mark.slow
def test_grpo():
    correct = numbers_printed("grpo", r"(\d+) of \d+ samples correct")
    assert len(correct) == 16
    assert sum(correct[8:]) > sum(correct[:8])


@pytest.mark.slow
def test_dpo():
    (share,) = numbers_printed("dpo", r"the margin grew on (\d+)%")
    assert share > 50


@pytest.mark.slow
def test_distillation():
    before, after = numbers_printed("distillation", r"held-out KL\(teacher ‖ student\) \w+: ([\d.]+)")
    assert after < before / 3
