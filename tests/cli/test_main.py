"""What every command shares: help, errors in four lines, exit codes, and a quick start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lydian.cli.main import app, describe
from lydian.errors import LydianError, RecipeError, RunError

COMMANDS = (
    *("run", "eval", "check", "compare", "rescore", "power", "gate", "contamination", "evidence", "report", "fetch"),
    *("grade", "show", "explain", "drill", "doctor", "pairs", "respond"),
)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> object:
    """Makes `lydian fetch` raise what the test hands over."""

    def install(error: BaseException) -> None:
        def fetch(name: str) -> None:
            raise error

        monkeypatch.setattr("lydian.models.fetch.fetch", fetch)

    return install


def facts(kind: type[LydianError]) -> LydianError:
    return kind(where="here", given="this\nand that", expected="other", fix="Do it.")


def test_help_lists_the_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0 and "Usage:" in result.output


def test_help_needs_no_heavy_package() -> None:
    """What makes `lydian --help` fast: none of these is imported until a command runs."""
    heavy = ("torch", "transformers", "pydantic", "rich", "numpy", "pyarrow")
    code = f"import sys, lydian.cli.main; print([name for name in {heavy} if name in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("kind", "code"), [(RecipeError, 2), (RunError, 1)])
def test_errors_are_four_labelled_lines(failing, kind: type[LydianError], code: int) -> None:
    failing(facts(kind))
    result = CliRunner().invoke(app, ["fetch", "x"])
    assert result.exit_code == code
    assert result.stderr.splitlines() == [
        "where     here",
        "given     this",
        "          and that",
        "expected  other",
        "fix       Do it.",
    ]


def test_a_bug_keeps_its_traceback(failing) -> None:
    failing(KeyError("bug"))
    result = CliRunner().invoke(app, ["fetch", "x"])
    assert isinstance(result.exception, KeyError)


def test_interrupted(failing) -> None:
    failing(KeyboardInterrupt())
    result = CliRunner().invoke(app, ["fetch", "x"])
    assert result.exit_code == 130 and result.stderr == "interrupted\n"


def test_wrong_usage_is_2() -> None:
    assert CliRunner().invoke(app, ["fetch"]).exit_code == 2
    assert CliRunner().invoke(app, ["no-such-command"]).exit_code == 2


def test_describe_needs_no_text() -> None:
    assert describe(RunError(where="a", given=3, expected="b", fix="c")).splitlines()[1] == "given     3"
