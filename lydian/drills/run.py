"""The drill: every fault off and on, and a table of what noticed it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from lydian.drills.fault import Fault, Finding
from lydian.drills.faults import FAULTS
from lydian.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a fault's guard saw with the fault off and on."""

    fault: Fault
    healthy: Finding
    broken: Finding

    @property
    def is_passed(self) -> bool:
        """Whether the guard was silent without the fault and spoke up with it."""
        return self.broken.is_caught and not self.healthy.is_caught


def chosen_faults(names: Seq[str]) -> list[Fault]:
    """The faults of these names, all without any. Raises InputError for a name that is none."""
    for name in names:
        if name not in FAULTS:
            near = difflib.get_close_matches(name, FAULTS, n=1)
            raise InputError(
                where="lydian drill",
                given=repr(name),
                expected=f"some of {', '.join(FAULTS)}",
                fix=f"Did you mean {near[0]}?" if near else "Name one of these, or none to run them all.",
            )
    return [FAULTS[name] for name in names or FAULTS]


def drilled(faults: Iterable[Fault]) -> Iterator[Result]:
    """Runs each fault's guard on the healthy pipeline, then on the broken one."""
    for fault in faults:
        yield Result(fault=fault, healthy=fault.check(is_broken=False), broken=fault.check(is_broken=True))


def drill_table(results: Seq[Result]) -> Table:
    """One row a fault: what it is, what one would see of it, what caught it, and what that measured off and on."""
    table = Table("fault", "expected signal", "what caught it", show_lines=True)
    table.columns[0].width = max(len(result.fault.name) for result in results)  # a name stays in one piece
    for result in results:
        fault, healthy, broken = result.fault, result.healthy, result.broken
        table.add_row(
            Text.assemble((fault.name, "bold"), "\n", fault.mistake),
            fault.signal,
            Text.assemble(
                (fault.guard_name, "bold") if broken.is_caught else ("nothing: it passed unnoticed", "bold red"),
                f"\nhealthy: {healthy.measured}",
                (", a false alarm", "bold red") if healthy.is_caught else "",
                f"\nbroken: {broken.measured}",
            ),
        )
    return table
