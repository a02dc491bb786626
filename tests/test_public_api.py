"""The names that the package offers, and the README's example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lydian

README = Path(__file__).parents[1] / "README.md"


def test_public_names_exist_and_are_few():
    assert len(lydian.__all__) <= 30
    for name in lydian.__all__:
        assert getattr(lydian, name).__doc__ or name == "ALGORITHMS", name
    assert dir(lydian) == lydian.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        lydian.no_such_name  # noqa: B018


@pytest.mark.slow
def test_the_readme_example_runs_and_gains(capsys: pytest.CaptureFixture[str]):
    """Load, evaluate, train, evaluate, compare, as in the README: fine-tuning must gain beyond its interval."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    scope: dict[str, object] = {}
    exec(code, scope)
    assert "Estimate(" in capsys.readouterr().out
    difference = lydian.compare(scope["before"], scope["after"]).difference  # type: ignore[arg-type]
    assert difference.low > 0
