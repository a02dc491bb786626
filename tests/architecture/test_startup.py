"""`import lydian` and `lydian --help` answer at once: they load none of the heavy packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "peft", "pandas", "pyarrow", "sympy")
REPORT = f"import sys; print('LOADED', [name for name in {HEAVY} if name in sys.modules])"


def last_line(root, code):
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_import_is_light(root):
    assert last_line(root, f"import lydian; {REPORT}") == "LOADED []"


def test_help_is_light(root):
    if not (root / "lydian/cli/main.py").exists():
        pytest.skip("lydian/cli/main.py does not exist yet")
    ask = "import sys\nsys.argv = ['lydian', '--help']\nfrom lydian.cli.main import main\n"
    ask += "try:\n    code = main()\nexcept SystemExit as stop:\n    code = stop.code\n"
    assert last_line(root, f"{ask}assert not code, code\n{REPORT}") == "LOADED []"


def test_the_check_sees_a_heavy_import(root):
    assert last_line(root, f"import pyarrow; {REPORT}") == "LOADED ['pyarrow']"
