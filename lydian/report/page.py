"""The report page: one HTML file that opens from disk, fetches nothing and shows what a run did."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from lydian.evaluation.over_optimisation import Course, course_lines, course_of
from lydian.recipes.run_dir import write_atomically
from lydian.report.entries import table_entries
from lydian.report.over_optimisation import over_optimisation_svg
from lydian.report.overview import COLUMNS, at_k_table, overview, overview_cells, overview_notes
from lydian.report.record import read_run
from lydian.report.tables import stage_columns, stage_rows

_SCRIPTS = ("dom.js", "charts.js", "overview.js", "comparison.js", "samples.js", "app.js")

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<noscript>This report draws itself with JavaScript. The same numbers are in summary.json, next to it.</noscript>
<script type="application/json" id="data">{data}</script>
<template id="courses">{courses}</template>
<script>{script}</script>
</body>
</html>
"""


def write_report(run_dir: Path, out: Path | None = None, *, others: Sequence[str] = ()) -> Path:
    """Writes the report of a run, finished or not, and returns its path (`run_dir/report.html` unless `out` is given).

    others  runs and evaluations, as `table_entries` names them, that stand in the comparison beside the run's stages

    Absent files show as not recorded; broken lines are left out and counted in the page. The file appears whole or
    not at all.

    Raises RunError if `run_dir` is not a run directory, or if the page cannot be written; InputError for another one
    that is not there.
    """
    path = run_dir / "report.html" if out is None else out
    record = read_run(run_dir)
    record["comparison"] = comparison_record(run_dir, others)
    page = render_page(record)
    write_atomically(path, page)
    return path


def comparison_record(run_dir: Path, others: Sequence[str] = ()) -> dict[str, Any]:
    """The comparison table of a run's stages and others: header, cells, the rows behind them, and notes.

    What cannot be read of the run is noted, and its row has nothing measured. Raises as `table_entries` for the others.
    """
    faults: list[str] = []
    own = [
        replace(entry, label=entry.label.removeprefix(f"{run_dir}:")) for entry in table_entries([str(run_dir)], faults)
    ]
    entries = [*own, *table_entries(others)]
    rows = overview(entries)
    return {
        "columns": COLUMNS,
        "cells": overview_cells(rows),
        "at_k": at_k_table(rows),
        "rows": rows,
        "notes": [*overview_notes(rows), *(f"Could not be read: {fault}" for fault in faults)],
    }


def render_page(record: dict[str, Any]) -> str:
    """The page as HTML, from what `read_run` returned.

    Completions are untrusted text: data travel as inert JSON, the scripts put them into the page as text only, and the
    content security policy admits this script and this style by their hashes and nothing from anywhere else.
    """
    assets = resources.files("lydian.report") / "assets"
    script = "\n".join((assets / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    style = (assets / "style.css").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src '{_source_hash(script)}'; style-src '{_source_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    summary = record["summary"]
    table = None
    if summary and summary.get("stages"):
        table = {"columns": stage_columns(summary), "rows": stage_rows(summary)}
    name = (record["run"] or {}).get("name") or "run"
    return _PAGE.format(
        policy=policy,
        title=html.escape(f"{name} · Lydian"),
        style=style,
        data=embed_json({**record, "table": table}),
        courses="".join(map(_course_figure, courses_of(record))),
        script=script,
    )


def courses_of(record: dict[str, Any]) -> list[Course]:
    """The stages whose reward was watched by a verifier that it did not come from: was the reward over-optimised?"""
    watched = [
        name
        for name, columns in record["metrics"].items()
        if {"reward", "heldout_accuracy"} <= columns["series"].keys()
    ]
    return [course_of(name, _lines(name, record["metrics"][name])) for name in watched]


def _lines(stage: str, columns: dict[str, Any]) -> list[dict[str, Any]]:
    """A stage's metrics line by line again; what a line lacks is left out."""
    series = columns["series"]
    return [
        {
            "stage": stage,
            "round": round,
            "metrics": {name: values[index] for name, values in series.items() if values[index] is not None},
        }
        for index, round in enumerate(columns["round"])
    ]


def _course_figure(course: Course) -> str:
    """The picture with its verdict, as markup: names are escaped, all else is numbers."""
    verdict = html.escape(course_lines(course)[-1])
    picture = over_optimisation_svg(course)
    name = html.escape(course.name)
    return f'<figure class="card course"><h3>{name}</h3>{picture}<figcaption>{verdict}</figcaption></figure>'


def embed_json(value: object) -> str:
    r"""JSON that cannot end the script element it stands in, nor be read as markup: `<` becomes `\u003c`.

    Raises ValueError for NaN and infinities, which are not JSON.

    >>> embed_json({"text": "</script>"})
    '{"text":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _source_hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
