"""What the documents list is what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from lydian.cli.doctor import EXTRAS
from lydian.data.feedback import FEEDBACK_LAYOUTS
from lydian.data.labelled import LABELLED_LAYOUTS, STEPWISE_LAYOUTS
from lydian.data.layouts import CONVERSATION_LAYOUTS, PREFERENCE_LAYOUTS, PROBLEM_LAYOUTS

ROOT = Path(__file__).parent.parent
LAYOUTS = {
    "problems": PROBLEM_LAYOUTS,
    "conversations": CONVERSATION_LAYOUTS,
    "preferences": PREFERENCE_LAYOUTS,
    "feedback": FEEDBACK_LAYOUTS,
    "stepwise": STEPWISE_LAYOUTS,
    "labelled": LABELLED_LAYOUTS,
}


def table(document: str, name: str) -> str:
    """The second cell of the row that begins with a name."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    (cell,) = re.findall(rf"^\| [^|]*`{name}`[^|]*\| ([^|]*) \|", text, flags=re.MULTILINE)
    return cell


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_set_of_columns_is_listed_in_order(kind: str) -> None:
    """Optional columns stand in brackets, and of the options A, B, … the first two."""
    listed = [re.sub(r" \(.*\)|…, ", "", columns).split(", ") for columns in table("recipes.md", kind).split(" · ")]
    assert listed == [list(layout.required) for layout in LAYOUTS[kind]]


def test_every_benchmark_is_listed_with_its_files() -> None:
    rows = tomllib.loads((ROOT / "lydian/evaluation/benchmarks.toml").read_text(encoding="utf-8"))
    for name, row in rows.items():
        cell = table("evaluation.md", name)
        assert all(Path(part).parts[0] in cell for part in row.get("path", [])), name


def test_every_shipped_recipe_is_listed() -> None:
    for path in (ROOT / "lydian/recipes/shipped").glob("*.toml"):
        assert table("recipes.md", re.escape(path.stem))


def test_every_extra_is_known_to_the_readme_and_to_doctor() -> None:
    """`all` holds others, `dev` is not for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys() - {"all", "dev"}
    assert extras == EXTRAS.keys()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"`{extra}` (" in readme for extra in extras)
