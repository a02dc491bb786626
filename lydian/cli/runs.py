"""Commands that train, evaluate and report: run, eval, check, compare, report, fetch."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    recipe: RecipeName,
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option(help="Folder, hub id or name; by default the recipe's model.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write: PREFIX.json and PREFIX.records.jsonl.")] = None,
) -> None:
    """Evaluate any model with a recipe's benchmark."""
    from rich.console import Console

    from lydian.recipes.load import load_recipe
    from lydian.recipes.run import evaluate_model
    from lydian.report.tables import format_estimate, format_share

    resolved = load_recipe(recipe, overrides or ())
    source = model or resolved.model.source
    prefix = out or Path("evaluations") / f"{resolved.name}_{re.sub(r'[^A-Za-z0-9.-]+', '_', source).strip('_')}"
    if prefix.with_name(f"{prefix.name}.json").exists():
        _refuse(f"{prefix}.json", "an evaluation", "a name that is free", "Choose another --out, or remove it.")
    report = evaluate_model(source, resolved, prefix, Console())
    layout = report.format()
    typer.echo(f"accuracy     {format_estimate(asdict(report.accuracy()))}  ({report.spec.num_problems} problems)")
    if layout is not None:
        typer.echo(f"format       {format_estimate(asdict(layout))}")
    typer.echo(f"mean tokens  {report.mean_tokens():.1f}")
    shares = [f"{outcome} {format_share(share)}" for outcome, share in report.outcome_shares().items() if share]
    typer.echo(f"outcomes     {', '.join(shares)}")
    typer.echo(f"written to   {prefix}.json")


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
    a: Annotated[str, typer.Argument(metavar="A", help="A run (its last stage), RUN:STAGE, or an evaluation's .json.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same; the difference is B minus A.")],
    strata: Annotated[
        list[str] | None, typer.Option(help="Also within each value of this metadata key; repeatable.")
    ] = None,
) -> None:
    """Compare two evaluations, problem by problem.

    Both must be of one benchmark: unlike specifications are refused.
    """
    from lydian.evaluation.compare import compare as compare_reports
    from lydian.report.tables import comparison_lines

    reports = [_load_evaluation(name) for name in (a, b)]
    typer.echo(comparison_lines(compare_reports(*reports, strata=strata or ())))


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
