"""The picture: well-formed XML that shows what there is and nothing that is not."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from lydian.evaluation.over_optimisation import course_of
from lydian.report.over_optimisation import HEIGHT, WIDTH, over_optimisation_svg

SPACE = "{http://www.w3.org/2000/svg}"


def drawn(name="ppo", num=6, **more):
    metrics = [
        {
            "stage": name,
            "round": k,
            "metrics": {"reward": float(k), "mean_tokens": 1.0} | {key: values[k] for key, values in more.items()},
        }
        for k in range(num)
    ]
    return ElementTree.fromstring(over_optimisation_svg(course_of(name, metrics)))


def test_both_curves_and_the_best_round():
    root = drawn(heldout_accuracy=[0.1, 0.2, 0.3, 0.2, 0.1, 0.0], kl_reference=[0.0, 1.0, 4.0, 9.0, 16.0, 25.0])
    titles = [element.text for element in root.iter(f"{SPACE}title")]
    assert titles[1:] == ["proxy reward", "gold accuracy", "best gold, round 2"]
    words = [element.text for element in root.iter(f"{SPACE}text")]
    assert {"√KL to the start, nats", "0%", "30%", "0", "5"} <= set(words)


def test_points_lie_by_the_root_of_kl():
    """KL 0, 1, 4 is √KL 0, 1, 2: the points are equally far apart."""
    root = drawn(num=3, kl_reference=[0.0, 1.0, 4.0])
    xs = [float(circle.get("cx")) for circle in root.iter(f"{SPACE}circle")]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1])


def test_everything_lies_inside():
    root = drawn(heldout_accuracy=[0.5] * 6)
    for circle in root.iter(f"{SPACE}circle"):
        assert 0 <= float(circle.get("cx")) <= WIDTH and 0 <= float(circle.get("cy")) <= HEIGHT


def test_what_was_not_measured_is_not_drawn():
    root = drawn(num=1)
    assert [element.text for element in root.iter(f"{SPACE}title")][1:] == ["proxy reward"]
    assert "round" in [element.text for element in root.iter(f"{SPACE}text")]


def test_a_stages_name_cannot_break_the_page():
    assert drawn(name="<b>&").get("aria-label").endswith("<b>&")
