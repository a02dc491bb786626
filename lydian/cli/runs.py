"""Commands that train, evaluate and report: run, eval, check, compare, report, fetch."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lydian.errors import InputError

if TYPE_CHECKING:
    from lydian.evaluation.records import EvalReport

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name, or a .toml file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY.PATH=VALUE]...", help="Settings to change, such as seed=1 or stages.grpo.rounds=20."),
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
    out: Annotated[Path | None, typer.Option(help="Where to write: PREFIX.json and PREFIX.records.jsonl.")] = None,
) -> None:
    """Evaluate any model with a benchmark, by name or from a recipe.

    `lydian eval MODEL --benchmark gsm8k`, `lydian eval MODEL --recipe RECIPE`, or `lydian eval RECIPE`.
    """
    if sum(option is not None for option in (model, benchmark, from_recipe)) > 1:
        _refuse("lydian eval", "several of --model, --benchmark, --recipe", "one of them", "Leave the others out.")
    if benchmark is not None:
        from lydian.cli.evaluations import evaluate_row

        prefix, report = evaluate_row(recipe, benchmark, list(overrides or ()), out)
    else:
        name, source = (recipe, model) if from_recipe is None else (from_recipe, recipe)
        prefix, report = _evaluate_by_recipe(name, list(overrides or ()), source, out)
    if report is not None:
        _print_report(report)
    typer.echo(f"written to   {prefix}.json")


def _evaluate_by_recipe(
    name: str, overrides: list[str], model: str | None, out: Path | None
) -> tuple[Path, EvalReport]:
    from rich.console import Console

    from lydian.recipes.load import load_recipe
    from lydian.recipes.run import evaluate_model

    resolved = load_recipe(name, overrides)
    source = model or resolved.model.source
    prefix = out or Path("evaluations") / f"{resolved.name}_{re.sub(r'[^A-Za-z0-9.-]+', '_', source).strip('_')}"
    if prefix.with_name(f"{prefix.name}.json").exists():
        _refuse(f"{prefix}.json", "an evaluation", "a name that is free", "Choose another --out, or remove it.")
    return prefix, evaluate_model(source, resolved, prefix, Console())


def _print_report(report: EvalReport) -> None:
    from lydian.report.tables import format_estimate, format_share

    layout = report.format()
    typer.echo(f"accuracy     {format_estimate(asdict(report.accuracy()))}  ({report.spec.num_problems} problems)")
    if layout is not None:
        typer.echo(f"format       {format_estimate(asdict(layout))}")
    typer.echo(f"mean tokens  {report.mean_tokens():.1f}")
    shares = [f"{outcome} {format_share(share)}" for outcome, share in report.outcome_shares().items() if share]
    typer.echo(f"outcomes     {', '.join(shares)}")


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
) -> None:
    """Compare evaluations, problem by problem.

    Two names: the difference B minus A, what was gained and lost, and examples. One or several, or with --table: a
    table of all evaluations, in which a run gives every stage. Unlike specifications are never compared.
    """
    if len(names) == 2 and as_table is None:
        from lydian.evaluation.compare import compare as compare_reports
        from lydian.report.overview import details_text
        from lydian.report.tables import comparison_lines

        before, after = (_load_evaluation(name) for name in names)
        comparison = compare_reports(before, after, strata=strata or ())
        typer.echo(comparison_lines(comparison))
        typer.echo(details_text(before, after, comparison))
        return
    import json

    from lydian.cli.evaluations import table_entries
    from lydian.report.overview import overview, overview_markdown, overview_text

    rows = overview(table_entries(names))
    if as_table == "json":
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        typer.echo((overview_markdown if as_table == "markdown" else overview_text)(rows))


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="The page's file; by default DIR/report.html.")] = None,
) -> None:
    """Write a run's report, one self-contained HTML file."""
    from lydian.report.page import write_report

    typer.echo(str(write_report(folder, out)))


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


def _load_evaluation(name: str) -> EvalReport:
    from lydian.evaluation.records import EvalReport

    return EvalReport.load(find_evaluation(name))


def find_evaluation(name: str) -> Path:
    """The common beginning of an evaluation's two files: of RUN (its last stage), RUN:STAGE, or a file's own name."""
    path = Path(name)
    folder, _, stage = name.rpartition(":")
    if folder and Path(folder).is_dir() and not path.exists():
        path = Path(folder)
    else:
        stage = ""
    if not path.is_dir():
        return path.with_name(re.sub(r"(\.records\.jsonl|\.json)$", "", path.name))
    # Not the partial ones: only a finished evaluation has its .json.
    found = sorted(file.with_suffix("") for file in (path / "evaluations").glob("[0-9][0-9]_*.json"))
    stages = {prefix.name[3:]: prefix for prefix in found}
    if not stages or (stage and stage not in stages):
        _refuse(
            name,
            f"a run without an evaluation{f' of {stage!r}' if stage else ''}",
            f"one of the stages {', '.join(stages)}" if stages else "a run with evaluations",
            "Name a stage as RUN:STAGE.",
        )
    return stages[stage] if stage else found[-1]


def _refuse(where: str, given: str, expected: str, fix: str) -> None:
    raise InputError(where=where, given=given, expected=expected, fix=fix)
