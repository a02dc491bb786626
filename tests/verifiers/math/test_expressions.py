"""Reading of single expressions: by grammar, never by Python."""

from pathlib import Path

import pytest

from lydian.verifiers.math.expressions import are_equal, load_libraries, read


@pytest.mark.parametrize("form", ["open('{0}', 'w')", "(open('{0}', 'w'), 1)[1]", "[1 for _ in [open('{0}', 'w')]]"])
def test_python_in_an_answer_is_not_run_when_it_is_read(form: str, tmp_path: Path) -> None:
    """sympy's own `sympify` would run each of these and leave the file behind; so does the comparison not."""
    load_libraries()
    target = tmp_path / "run"
    read(form.format(target))
    are_equal(form.format(target), "1", tolerance=1e-9, compare_sets=True)
    assert not target.exists()


def test_decimals_are_close_by_their_size() -> None:
    """√2 · 10⁻⁷ and twice that are unlike; √2 to twelve digits is like: the tolerance is relative."""
    load_libraries()
    small = r"\frac{\sqrt{2}}{10^7}"
    assert not are_equal(small, "0.00000028284271247", tolerance=1e-9, compare_sets=False)[0]
    assert are_equal(small, "0.000000141421356237", tolerance=1e-9, compare_sets=False)[0]
