"""`lydian drill`: the classic mistakes, one after another, and what notices them."""

from __future__ import annotations

from typing import Annotated

import typer


def drill(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Faults; by default all.")] = None,
) -> None:
    """Break the pipeline on purpose and see it noticed.

    Switches on the classic mistakes of post-training, one at a time, on the tiny model, and prints what caught each.
    Exit code 1 if one went unnoticed, or if a guard gave alarm without a fault.
    """
    from rich.console import Console

    from lydian.drills.run import chosen_faults, drill_table, drilled

    console = Console()
    results = []
    with console.status("drilling") as status:
        for result in drilled(chosen_faults(names or ())):
            results.append(result)
            status.update(f"drilling: {result.fault.name} done")
    console.print(drill_table(results))
    num_passed = sum(result.is_passed for result in results)
    console.print(f"{num_passed} of {len(results)} faults caught, with no alarm before they were switched on")
    if num_passed < len(results):
        raise typer.Exit(1)
