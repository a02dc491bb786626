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
PARTS = {
    "pydantic_core",  # pydantic pins it and documents it as its own
    "latex2sympy2_extended",  # what math-verify reads LaTeX with
    "antlr4",
}


def modules_named(nodes):
    """Dotted names of all that import statements may load: `from a.b import c` names a.b and a.b.c."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def run_at_import(node):
    """The statements that run when the module is imported: all but function bodies and `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        is_guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not is_guard and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from run_at_import(child)


def top_level(names):
    return {name.partition(".")[0] for name in names}


def imported(source):
    """The packages that a file imports, at whatever depth."""
    return top_level(modules_named(ast.walk(source.tree)))


def loaded(source):
    """The modules that importing the file loads."""
    return modules_named(run_at_import(source.tree))


def optional_at_import(library, optional):
    """Files that load, when imported, a package of an extra by way of a module that stands on it, or a package's
    `__init__` that does. Such a module is for a function to import, once it is known that the extra is there."""
    standing = {s.module for s in library if top_level(loaded(s)) & optional}
    inits = {str(s.path) for s in library if s.module in standing and s.path.name == "__init__.py"}
    return inits | {str(s.path) for s in library if loaded(s) & standing}


def declared(root, *, extras):
    """The import names of the distributions in pyproject.toml: the core, or those of the users' extras."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    groups = project["optional-dependencies"]
    wanted = [r for name in ("math", "hub", "gguf") for r in groups[name]] if extras else project["dependencies"]
    return {re.match(r"[\w-]+", requirement)[0].replace("-", "_") for requirement in wanted}


def test_objectives_are_pure(library):
    wrong = {str(s.path): imported(s) - OBJECTIVES for s in library if s.path.parts[1] == "objectives"}
    assert wrong, "no file under lydian/objectives was read"
    assert {path: names for path, names in wrong.items() if names} == {}


def test_everything_imported_is_declared(library, root):
    known = declared(root, extras=False) | declared(root, extras=True) | BEHIND_ADAPTORS | PARTS | {"lydian"}
    wrong = {str(s.path): imported(s) - known - sys.stdlib_module_names for s in library}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_only_functions_reach_for_an_extra(library, root):
    assert optional_at_import(library, declared(root, extras=True) | BEHIND_ADAPTORS) == set()


def test_the_checks_see_every_kind_of_import(planted):
    text = (
        "import a.b, c\nfrom d.e import f\nfrom . import g\n"
        "class K:\n    import h\n"
        "def k():\n    import i\n"
        "if TYPE_CHECKING:\n    import j\n"
        "try:\n    import m\nexcept ImportError:\n    pass\n"
    )
    source = planted("lydian/a.py", text)
    assert imported(source) == {"a", "c", "d", "h", "i", "j", "m"}
    assert loaded(source) == {"a.b", "c", "d.e", "d.e.f", "h", "m"}


def test_the_check_sees_who_loads_an_extra(planted):
    stands = planted("lydian/rollout/vllm.py", "import vllm\n")
    lazy = planted("lydian/rollout/local.py", "def start():\n    from lydian.rollout import vllm\n")
    eager = planted("lydian/recipes/run.py", "from lydian.rollout.vllm import Engine\n")
    package = planted("lydian/rollout/__init__.py", "import vllm\n")
    assert optional_at_import([stands, lazy], {"vllm"}) == set()
    assert optional_at_import([stands, eager], {"vllm"}) == {"lydian/recipes/run.py"}
    assert optional_at_import([package], {"vllm"}) == {"lydian/rollout/__init__.py"}


def test_declared_reads_import_names(root):
    assert "torch" in declared(root, extras=False)
    assert "math_verify" in declared(root, extras=True)
    assert "torch" not in declared(root, extras=True)
