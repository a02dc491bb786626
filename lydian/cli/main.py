"""`lydian`: the command line. Commands import what they need when they run, so that `--help` answers at once.

Exit codes: 0 done; 1 a check failed or a run broke; 2 wrong usage or input; 130 interrupted.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from lydian.cli import answers, data, distill, drills, evaluations, inspection, models, rewards, runs
from lydian.cli.doctor import doctor
from lydian.errors import InputError, LydianError
from lydian.models.allocator import keep_freed_memory

INTERRUPTED = 130


class Commands(TyperGroup):
    """Turns errors that Lydian raises on purpose into four lines and an exit code; any other is a bug and keeps its
    traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LydianError as error:
            typer.echo(describe(error), err=True)
            raise typer.Exit(2 if isinstance(error, InputError) else 1) from error
        except KeyboardInterrupt as error:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from error


def describe(error: LydianError) -> str:
    """The error in four labelled lines; further lines of a value are indented below it.

    >>> from lydian.errors import RecipeError
    >>> print(describe(RecipeError(where="seed", given="'3'", expected="a valid integer", fix="Write 3.")))
    where     seed
    given     '3'
    expected  a valid integer
    fix       Write 3.
    """
    facts = {"where": error.where, "given": error.given, "expected": error.expected, "fix": error.fix}
    return "\n".join(f"{label:<10}" + str(fact).strip().replace("\n", "\n" + " " * 10) for label, fact in facts.items())


app = typer.Typer(
    name="lydian",
    cls=Commands,
    help="Post-training language models with numbers you can trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"lydian {version('lydian')}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Post-training language models with numbers you can trust."""


for command in (
    runs.run,
    runs.eval_model,
    runs.check,
    runs.compare,
    evaluations.rescore,
    evaluations.power,
    evaluations.gate,
    evaluations.contamination,
    evaluations.evidence,
    rewards.reward,
    rewards.best_of,
    rewards.over_optimisation,
    data.pairs,
    runs.report,
    runs.fetch,
    models.merge,
    models.unmerge,
    models.export,
    distill.respond,
    answers.grade,
    inspection.show,
    inspection.explain,
    drills.drill,
    doctor,
):
    app.command(name="eval" if command is runs.eval_model else None)(command)


def main() -> None:
    """The entry point of the `lydian` script."""
    keep_freed_memory()  # before torch is imported
    app()


if __name__ == "__main__":
    main()
