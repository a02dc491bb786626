"""No module is named after the fact that nobody knew where its functions belong."""

from __future__ import annotations

HOMELESS = {"base", "common", "helper", "helpers", "misc", "util", "utils"}


def homeless(source):
    """What names no concept in a path; words inside a longer name count, save `base`, a term of the field."""
    parts = source.path.with_suffix("").parts
    words = {word for part in parts for word in part.split("_")} - {"base"}
    return sorted(HOMELESS & (words | set(parts)))


def test_every_module_names_a_concept(sources):
    assert {str(s.path): found for s in sources if (found := homeless(s))} == {}


def test_the_check_sees_them(planted):
    assert homeless(planted("lydian/data/text_utils.py", "")) == ["utils"]
    assert homeless(planted("lydian/common/pairs.py", "")) == ["common"]
    assert homeless(planted("lydian/models/base.py", "")) == ["base"]
    assert homeless(planted("lydian/recipes/tiny_base.py", "")) == []
