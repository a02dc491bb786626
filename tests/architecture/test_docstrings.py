"""Every module, and every public function and class at a module's top level, says what it is."""

from __future__ import annotations

import ast


def undocumented(source):
    if not source.tree.body:  # an empty __init__.py has nothing to say
        return []
    found = [] if ast.get_docstring(source.tree) else [f"{source.path}: the module"]
    for node in source.tree.body:
        documentable = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if documentable and not node.name.startswith("_") and not ast.get_docstring(node):
            found.append(f"{source.place(node)}: {node.name}")
    return found


def test_everything_public_is_documented(library):
    assert [found for s in library for found in undocumented(s)] == []


def test_the_check_sees_what_is_missing(planted):
    text = "class A:\n    def method(self): ...\ndef f(): ...\ndef _g(): ...\nasync def h():\n    'Says it.'\n"
    missing = ["lydian/a.py: the module", "lydian/a.py:1: A", "lydian/a.py:3: f"]
    assert undocumented(planted("lydian/a.py", text)) == missing
    assert undocumented(planted("lydian/__init__.py", "")) == []
