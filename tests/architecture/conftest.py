"""The sources that the architecture tests read, and a way to plant a violation."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("lydian", "tests", "examples", "benchmarks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A Python file: its path from the root, its text, its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def is_library(self) -> bool:
        return self.path.parts[0] == "lydian"

    @property
    def module(self) -> str:
        """The dotted name that imports it."""
        return ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")

    def place(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.path}:{node.lineno}"


def source(path: str, text: str) -> Source:
    return Source(path=Path(path), text=text, tree=ast.parse(text, filename=path))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """Every Python file of the project, in order."""
    paths = sorted(p for top in CODE for p in (ROOT / top).rglob("*.py"))
    return [source(str(p.relative_to(ROOT)), p.read_text("utf-8")) for p in paths]


@pytest.fixture(scope="session")
def library(sources: list[Source]) -> list[Source]:
    """The files under lydian/."""
    return [s for s in sources if s.is_library]


@pytest.fixture(scope="session")
def planted() -> Callable[[str, str], Source]:
    """Makes a source from a path and text, so that a test can show that its check sees a violation."""
    return source
