"""What import-linter cannot say: what a package may import at all, and what must be declared.

The directions between Lydian's packages are import-linter contracts in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib

OBJECTIVES = {"__future__", "collections", "dataclasses", "jaxtyping", "lydian", "math", "torch", "typing"}
BEHIND_ADAPTORS = {"ray", "vllm"}  # engines a user brings along; the adaptor says how to install them
PARTS = {"pydantic_core"}  # pydantic pins it and documents it as its own


def imported(tree):
    """The top-level names of all modules that a tree imports, at whatever depth."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


def run_at_import(node):
    """The statements that run when the module is imported: all but function bodies and `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        is_guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not is_guard and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from run_at_import(child)


def imported_at_import(tree):
    statements = [n for n in run_at_import(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    return imported(ast.Module(body=statements, type_ignores=[]))


def declared(root, *, extras):
    """The import names of the distributions in pyproject.toml: the core, or those of the users' extras."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    groups = project["optional-dependencies"]
    wanted = [r for name in ("math", "hub", "gguf") for r in groups[name]] if extras else project["dependencies"]
    return {re.match(r"[\w-]+", requirement)[0].replace("-", "_") for requirement in wanted}


def test_objectives_are_pure(library):
    wrong = {str(s.path): imported(s.tree) - OBJECTIVES for s in library if s.path.parts[1] == "objectives"}
    assert wrong, "no file under lydian/objectives was read"
    assert {path: names for path, names in wrong.items() if names} == {}


def test_everything_imported_is_declared(library, root):
    known = declared(root, extras=False) | declared(root, extras=True) | BEHIND_ADAPTORS | PARTS | {"lydian"}
    wrong = {str(s.path): imported(s.tree) - known - sys.stdlib_module_names for s in library}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_nothing_optional_is_needed_to_import_a_module(library, root):
    optional = declared(root, extras=True) | BEHIND_ADAPTORS
    wrong = {str(s.path): imported_at_import(s.tree) & optional for s in library}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_the_checks_see_every_kind_of_import(planted):
    text = (
        "import a.b, c\nfrom d.e import f\nfrom . import g\n"
        "class K:\n    import h\n"
        "def k():\n    import i\n"
        "if TYPE_CHECKING:\n    import j\n"
        "try:\n    import m\nexcept ImportError:\n    pass\n"
    )
    tree = planted("lydian/a.py", text).tree
    assert imported(tree) == {"a", "c", "d", "h", "i", "j", "m"}
    assert imported_at_import(tree) == {"a", "c", "d", "h", "m"}


def test_declared_reads_import_names(root):
    assert "torch" in declared(root, extras=False)
    assert "math_verify" in declared(root, extras=True)
    assert "torch" not in declared(root, extras=True)
