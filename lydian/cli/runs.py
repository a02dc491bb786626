"""Commands that train, evaluate and report: run, eval, check, compare, report, fetch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lydian.errors import InputError
from lydian.report.entries import load_evaluation, table_entries

if TYPE_CHECKING:
    from lydian.evaluation.records import EvalReport

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name, or a .toml file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Settings to change, such as seed=1 or stages.grpo.rounds=20."),
]

Ks = Annotated[
    list[int] | None,
    typer.Option("--k", help="k of pass@k, pass^k, maj@k; repeatable; by default 2, 4, … up to the samples a problem."),
]


def run(
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="A shipped recipe's name, or a .toml file.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new run; by default runs/NAME.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a run to go on with.")] = None,
) -> None:
    """Run a recipe, or go on with a run.

    Evaluates the base model, trains stage by stage, evaluates after each on the same benchmark, writes a report.
    """
    if recipe is None and resume is None:
        _refuse("lydian run", "neither a recipe nor --resume", "one of them", "Write `lydian run quickstart`.")
    if out is not None and resume is not None:
        _refuse("lydian run", "both --out and --resume", "one of them", "--resume goes on in the folder it names.")
    from rich.console import Console

    from lydian.recipes.load import load_recipe
    from lydian.recipes.run import run_recipe
    from lydian.report.page import write_report
    from lydian.report.tables import stage_table

    console = Console()
    resolved = load_recipe(recipe if recipe is not None else _recipe_of(resume), overrides or ())
    folder = resume or out or _free_folder(Path("runs") / resolved.name)
    console.print(f"{resolved.name} in {folder}", highlight=False, markup=False)
    try:
        summary = run_recipe(resolved, folder, resume=resume is not None, console=console)
    except KeyboardInterrupt as error:
        has_begun = (folder / "recipe.json").exists()
        typer.echo(f"interrupted; `lydian run --resume {folder}` goes on" if has_begun else "interrupted", err=True)
        raise typer.Exit(130) from error
    console.print()
    console.print(stage_table(summary))
    if resolved.expect:
        console.print(f"expected: {resolved.expect}", highlight=False, markup=False)
    console.print(f"report: {write_report(folder)}", highlight=False, markup=False, soft_wrap=True)


def eval_model(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE_OR_MODEL", help="A recipe; with --benchmark or --recipe the model.")
    ],
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option(help="Folder, hub id or name; by default the recipe's model.")] = None,
    benchmark: Annotated[
        str | None, typer.Option(help="Evaluate a model with a benchmark: gsm8k, mmlu, …, or a .toml file.")
    ] = None,
    from_recipe: Annotated[
        str | None, typer.Option("--recipe", help="Evaluate a model with the benchmark of this recipe.")
    ] = None,
    ks: Ks = None,
    out: Annotated[Path | None, typer.Option(help="Where to write: PREFIX.json and PREFIX.records.jsonl.")] = None,
) -> None:
    """Evaluate any model with a benchmark, by name or from a recipe.

    `lydian eval MODEL --benchmark gsm8k`, `lydian eval MODEL --recipe RECIPE`, or `lydian eval RECIPE`.
    """
    if sum(option is not None for option in (model, benchmark, from_recipe)) > 1:
        _refuse("lydian eval", "several of --model, --benchmark, --recipe", "one of them", "Leave the others out.")
    if benchmark is not None:
        from lydian.cli.evaluations import evaluate_row

        prefix, report = evaluate_row(recipe, benchmark, list(overrides or ()), out, ks or ())
    else:
        name, source = (recipe, model) if from_recipe is None else (from_recipe, recipe)
        prefix, report = _evaluate_by_recipe(name, list(overrides or ()), source, out, ks or ())
    if report is not None:
        _print_report(report, ks or ())
    typer.echo(f"written to   {prefix}.json")


def _evaluate_by_recipe(
    name: str, overrides: list[str], model: str | None, out: Path | None, ks: Sequence[int]
) -> tuple[Path, EvalReport]:
    from rich.console import Console

    from lydian.evaluation.statistics import require_k
    from lydian.recipes.load import load_recipe
    from lydian.recipes.run import evaluate_model

    resolved = load_recipe(name, overrides)
    for k in ks:
        require_k("--k", k, resolved.benchmark.num_samples)
    source = model or resolved.model.source
    prefix = out or Path("evaluations") / f"{resolved.name}_{re.sub(r'[^A-Za-z0-9.-]+', '_', source).strip('_')}"
    if prefix.with_name(f"{prefix.name}.json").exists():
        _refuse(f"{prefix}.json", "an evaluation", "a name that is free", "Choose another --out, or remove it.")
    return prefix, evaluate_model(source, resolved, prefix, Console())


def _print_report(report: EvalReport, ks: Sequence[int]) -> None:
    from lydian.report.overview import at_k_lines
    from lydian.report.tables import LABEL_FREE_NOTE, format_estimate, format_share
    from lydian.verifiers.verifier import is_label_free

    layout = report.format()
    measured = "agreement" if is_label_free(report.spec.verifier) else "accuracy"
    note = LABEL_FREE_NOTE if measured == "agreement" else ""
    shown = f"{format_estimate(asdict(report.accuracy()))}{note}"
    typer.echo(f"{measured:<13}{shown}  ({report.spec.num_problems} problems)")
    if layout is not None:
        typer.echo(f"format       {format_estimate(asdict(layout))}")
    typer.echo(f"mean tokens  {report.mean_tokens():.1f}")
    shares = [f"{outcome} {format_share(share)}" for outcome, share in report.outcome_shares().items() if share]
    typer.echo(f"outcomes     {', '.join(shares)}")
    for line in at_k_lines(report, ks):
        typer.echo(line)


def check(recipe: RecipeName, overrides: Overrides = None) -> None:
    """Bind a recipe and try each stage on the tiny model.

    Two steps of each; everything wrong is reported at once.
    """
    from rich.console import Console

    from lydian.recipes.check import check_recipe
    from lydian.recipes.load import load_recipe

    resolved = load_recipe(recipe, overrides or ())
    problems = check_recipe(resolved, Console())
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{resolved.name}: {len(resolved.stages)} stages bind and run")


def compare(
    names: Annotated[
        list[str],
        typer.Argument(metavar="A [B]...", help="A run (two names: its last stage), RUN:STAGE, or a report's .json."),
    ],
    strata: Annotated[
        list[str] | None, typer.Option(help="Also within each value of this metadata key; repeatable.")
    ] = None,
    as_table: Annotated[
        Literal["text", "markdown", "json"] | None,
        typer.Option("--table", help="A row for each evaluation; the default for one name and for several."),
    ] = None,
    ks: Ks = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="JSON lines with a score of every sample of the one evaluation: also rm@k, best of k."),
    ] = None,
) -> None:
    """Compare evaluations, problem by problem.

    Two names: the difference B minus A, what was gained and lost, and examples. One or several, or with --table: a
    table of all evaluations, in which a run gives every stage and p-values are Holm's. Unlike specifications are never
    compared.
    """
    if scores is not None:
        _print_best_of(names, ks or (), scores)
        return
    if len(names) == 2 and as_table is None:
        from lydian.evaluation.compare import compare as compare_reports
        from lydian.report.overview import details_text
        from lydian.report.tables import comparison_lines

        before, after = (load_evaluation(name) for name in names)
        comparison = compare_reports(before, after, strata=strata or ())
        typer.echo(comparison_lines(comparison))
        typer.echo(details_text(before, after, comparison, ks or ()))
        return
    if strata:
        _refuse("--strata", f"a table of {', '.join(names)}", "the comparison of two evaluations", "Name two.")
    import json

    from lydian.report.overview import overview, overview_markdown, overview_text

    rows = overview(table_entries(names), ks or ())
    if as_table == "json":
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        typer.echo((overview_markdown if as_table == "markdown" else overview_text)(rows))


def _print_best_of(names: list[str], ks: Sequence[int], scores: Path) -> None:
    from lydian.evaluation.at_k import default_ks, read_scores
    from lydian.report.overview import at_k_lines

    if len(names) != 1:
        _refuse("--scores", f"{len(names)} evaluations", "the one that the scores are of", "Name one evaluation.")
    report = load_evaluation(names[0])
    ks = ks or default_ks(report.spec.num_samples) or (2,)  # one sample a problem: there is nothing to choose from
    for line in at_k_lines(report, ks, read_scores(scores, report.records)):
        typer.echo(line)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, finished or not.")],
    others: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OTHER]...", help="Runs or evaluations to stand in its comparison table too."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The page's file; by default DIR/report.html.")] = None,
) -> None:
    """Write a run's report, one self-contained HTML file."""
    from lydian.report.page import write_report

    typer.echo(str(write_report(folder, out, others=others or ())))


def fetch(name: Annotated[str, typer.Argument(metavar="NAME", help="Such as smollm2-135m.")]) -> None:
    """Download a pretrained model into the cache."""
    from lydian.models.fetch import fetch as fetch_model

    typer.echo(str(fetch_model(name)))


def _recipe_of(folder: Path | None) -> Path:
    assert folder is not None
    path = folder / "recipe.json"
    if not path.is_file():
        _refuse(str(folder), "a folder without recipe.json", "the folder of a run", "Check the path.")
    return path


def _free_folder(folder: Path) -> Path:
    """The folder itself, or with the first number that makes it new: runs/x, runs/x-2, …"""
    number = 1
    free = folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def _refuse(where: str, given: str, expected: str, fix: str) -> None:
    raise InputError(where=where, given=given, expected=expected, fix=fix)
