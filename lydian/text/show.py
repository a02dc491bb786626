"""Print an encoded conversation token by token, so that a person can check by eye what is trained."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lydian.text.template import Encoded, Template

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"system": "magenta", "user": "cyan", "assistant": "default", "tool": "yellow", "template": "bright_black"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token as `lydian show` prints it; `text` has line breaks and tabs escaped."""

    index: int
    id: int
    text: str
    role: str
    trained: bool


def token_table(encoded: Encoded, template: Template) -> list[TokenRow]:
    """One row a token, in order."""
    pieces = template.pieces(encoded.tokens)
    columns = zip(encoded.tokens, pieces, encoded.roles, encoded.trained, strict=True)
    return [
        TokenRow(index=n, id=i, text=_escaped(piece), role=role, trained=trained)
        for n, (i, piece, role, trained) in enumerate(columns)
    ]


def plain_table(rows: Seq[TokenRow]) -> str:
    """The rows as aligned text; the last line counts trained tokens."""
    cells = [("", "id", "text", "role", "trained")]
    cells += [(str(r.index), str(r.id), f"|{r.text}|", r.role, "yes" if r.trained else "") for r in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    lines = [
        f"{number:>{widths[0]}}  {i:>{widths[1]}}  {text:<{widths[2]}}  {role:<{widths[3]}}  {trained}".rstrip()
        for number, i, text, role, trained in cells
    ]
    return "\n".join([*lines, _count(rows)])


def rich_table(rows: Seq[TokenRow]) -> Table:
    """The rows as a rich table: trained tokens green, the others in the colour of their role."""
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=_count(rows), box=None, pad_edge=False)
    for name in ("", "id", "text", "role", "trained"):
        table.add_column(name, justify="right" if name in ("", "id") else "left", no_wrap=True)
    for row in rows:
        style = "bold green" if row.trained else _STYLES[row.role]
        trained = "yes" if row.trained else ""
        table.add_row(str(row.index), str(row.id), Text(f"|{row.text}|", style), Text(row.role, style), trained)
    return table


def _count(rows: Seq[TokenRow]) -> str:
    return f"{sum(r.trained for r in rows)} of {len(rows)} tokens are trained"


def _escaped(piece: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(named.get(c, c) if c in named or c.isprintable() else f"\\u{ord(c):04x}" for c in piece)
