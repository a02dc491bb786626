"""The report page: self-contained, exact, and closed against what a model may have written."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lydian.report.page import comparison_record, courses_of, embed_json, write_report
from lydian.report.record import read_run
from lydian.report.tables import stage_columns, stage_rows
from tests.evaluation.conftest import make_report  # noqa: F401  a fixture
from tests.report.fake_run import HOSTILE, summary, write_fake_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Elements(HTMLParser):
    """Every element of a page: its tag, attributes and, for script and style, its text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem:
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)

    def texts(self, tag: str) -> list[str]:
        return [text for name, _, text in self.found if name == tag]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def page(run_dir: Path) -> str:
    path = write_report(run_dir)
    assert path == run_dir / "report.html"
    return path.read_text(encoding="utf-8")


def embedded(page: str) -> dict[str, Any]:
    (text,) = [text for _, attributes, text in Elements(page).found if attributes.get("id") == "data"]
    return json.loads(text)


def test_nothing_comes_from_outside(page: str) -> None:
    """No element names a resource; the only address in the page is the SVG namespace, which nothing loads."""
    for _, attributes, _ in Elements(page).found:
        assert not {"src", "href", "srcset", "data", "action"} & set(attributes)
    assert set(re.findall(r"[a-z]+://[^\s\"']*", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\bfetch\(|XMLHttpRequest|\bimport\b|@import|url\(", page)


def test_the_policy_admits_this_script_and_style_only(page: str) -> None:
    elements = Elements(page)
    policy = next(a["content"] for _, a, _ in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    script, style = elements.texts("script")[-1], elements.texts("style")[0]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}'; style-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_data_are_embedded_exactly(run_dir: Path, page: str) -> None:
    data = embedded(page)
    table = {"columns": list(stage_columns(summary())), "rows": [list(row) for row in stage_rows(summary())]}
    comparison = json.loads(json.dumps(comparison_record(run_dir)))
    assert data == {**read_run(run_dir), "table": table, "comparison": comparison}
    lines = (run_dir / "rollouts/03_grpo/round_000005.jsonl").read_bytes().splitlines()
    shown = [row for row in data["samples"]["rows"] if (row["stage"], row["round"]) == ("grpo", 5)]
    assert shown == [{"stage": "grpo", "round": 5, **json.loads(line)} for line in lines]


def test_the_table_shows_the_summary_s_numbers(run_dir: Path, page: str) -> None:
    stages = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))["stages"]
    for stage, row in zip(stages, embedded(page)["table"]["rows"], strict=True):
        value, low, high = (float(number) for number in re.findall(r"\d+\.\d", row[1]))
        assert row[0] == stage["stage"]
        for shown, exact in ((value, "value"), (low, "low"), (high, "high")):
            assert abs(shown - 100 * stage["accuracy"][exact]) <= 0.05 + 1e-9
        if stage["versus_previous"]:
            assert abs(float(row[4].split(" ")[0]) - 100 * stage["versus_previous"]["value"]) <= 0.05 + 1e-9


def test_hostile_text_cannot_leave_its_script_element(page: str) -> None:
    """The page has one data script and one program, in that order, and no element a completion asked for."""
    elements = Elements(page)
    kinds = [attributes.get("type") for tag, attributes, _ in elements.found if tag == "script"]
    assert kinds == ["application/json", None]
    assert "img" not in [tag for tag, _, _ in elements.found]
    data = elements.texts("script")[0]
    assert not set("<>&\u2028\u2029") & set(data) and data.isascii()
    pieces = [piece for row in embedded(page)["samples"]["rows"] for piece in row["pieces"]]
    assert set(HOSTILE) <= set(pieces)


def test_the_program_has_no_way_to_make_markup_of_text(page: str) -> None:
    script = Elements(page).texts("script")[-1]
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "Function("):
        assert sink not in script


def test_the_comparison_has_every_stage_and_other_runs(make_report: Any, tmp_path: Path) -> None:  # noqa: F811
    """Base 0 of 4, sft 3 of 4, another run 4 of 4; grpo was not evaluated; a damaged file is noted, not hidden."""
    root = write_fake_run(tmp_path / "run")
    shutil.rmtree(root / "evaluations")
    make_report("wwww").save(root / "evaluations" / "00_base")
    make_report("cccw").save(root / "evaluations" / "01_sft")
    make_report("cccc").save(tmp_path / "other")
    found = comparison_record(root, [f"{tmp_path}/other.json"])
    assert [cell[0] for cell in found["cells"]] == ["base", "sft", "expert_iteration", "grpo", f"{tmp_path}/other.json"]
    assert [row["accuracy"] == "not measured" for row in found["rows"]] == [False, False, True, True, False]
    assert found["rows"][1]["versus_first"]["gained"] == ["p0", "p1", "p2"] and "Holm" in found["notes"][0]
    assert found["rows"][0]["command"] == "lydian run tiny_ladder --out runs/tiny_ladder"
    (flip,) = read_run(root)["flips"]
    assert flip["num_gained"] == 3 and "right" in flip["gained"][0][1]["text"]  # from the file of generations
    (root / "evaluations" / "01_sft.records.jsonl").write_text("no record\n")
    assert "01_sft.records.jsonl" in comparison_record(root)["notes"][0]


def test_a_watched_reward_is_drawn(tmp_path: Path) -> None:
    """Six rounds: the reward goes from 0 to .5, gold from 50 % to 25 %. A stage without gold has no picture."""
    root = write_fake_run(tmp_path)
    assert courses_of(read_run(root)) == []
    assert embedded(write_report(root).read_text(encoding="utf-8"))["stages"][-1] == "grpo"
    with (root / "metrics.jsonl").open("a", encoding="utf-8") as lines:
        for round in range(6):
            metrics = {"reward": round / 10, "heldout_accuracy": 0.5 - round / 20, "kl_reference": round / 10}
            row = {"stage": "a<b", "round": round, "step": round + 1, "seconds": 1.0}
            lines.write(json.dumps(row | {"metrics": metrics | {"mean_tokens": 10.0}}) + "\n")
    (course,) = courses_of(read_run(root))
    assert course.is_over_optimised and course.rounds[-1].kl == 5.0 and course.loss_from_best == 0.25
    page = write_report(root).read_text(encoding="utf-8")
    template = re.search(r'<template id="courses">(.*?)</template>', page, re.DOTALL)
    assert template is not None and template[1].count("<svg") == 1
    assert "<h3>a&lt;b</h3>" in template[1] and "over-optimised: proxy +0.4, gold -20.0%" in template[1]


def test_numbers_that_are_not_json_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        embed_json({"loss": float("nan")})


def test_a_run_in_progress_renders(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"name": "young & <new>", "finished": null}', encoding="utf-8")
    page = write_report(tmp_path, tmp_path / "elsewhere.html").read_text(encoding="utf-8")
    assert "<title>young &amp; &lt;new&gt; · Lydian</title>" in page
    assert embedded(page)["table"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere.html", "run.json"]


def rendered(path: Path, profile: Path) -> tuple[str, str]:
    """The page's document after its scripts ran, and what the browser logged."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--disable-component-update", "--disable-sync", f"--user-data-dir={profile}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", path.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    return result.stdout, "\n".join(line for line in result.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the path")
@pytest.mark.slow
def test_a_browser_shows_the_table_and_runs_nothing_hostile(run_dir: Path, page: str, tmp_path: Path) -> None:
    document, log = rendered(run_dir / "report.html", tmp_path / "profile")
    assert log == ""
    assert "<title>tiny_ladder · Lydian</title>" in document
    text = re.sub(r"<(script|style).*?</\1>", "", document, flags=re.DOTALL)
    assert "<img" not in text and "[object" not in text and "undefined" not in text and "NaN" not in text
    assert "&lt;/script&gt;&lt;script&gt;document.title='owned'&lt;/script&gt;" in text
    assert text.count('aria-selected="true"') == 1 and 'aria-selected="false"' in text
    cells = re.findall(
        r"<t[hd][^>]*>([^<]*)</t[hd]>", re.search(r'<table class="stages">.*?</table>', text, re.DOTALL)[0]
    )
    expected = [*stage_columns(summary()), *(cell for row in stage_rows(summary()) for cell in row)]
    assert [cell.replace("&lt;", "<") for cell in cells] == expected


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the path")
@pytest.mark.slow
@pytest.mark.parametrize("left", [["run.json"], ["metrics.jsonl"], ["summary.json"]])
def test_a_browser_shows_what_is_left_of_a_run(left: list[str], tmp_path: Path) -> None:
    whole = write_fake_run(tmp_path / "whole")
    part = tmp_path / "part"
    part.mkdir()
    for name in left:
        shutil.copy(whole / name, part / name)
    document, log = rendered(write_report(part), tmp_path / "profile")
    text = re.sub(r"<(script|style).*?</\1>", "", document, flags=re.DOTALL)
    assert log == ""
    assert "was not recorded" in text and "undefined" not in text and "NaN" not in text
