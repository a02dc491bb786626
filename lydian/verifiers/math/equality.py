"""Are two mathematical answers equal? Runs inside a worker process only: sympy may take any time and memory.

Structure is compared here (lists, sets, tuples, intervals, matrices), and at the leaves text, times and ratios, bases,
labels, units and numbers, each by its `Policy`; what remains is compared by math-verify and sympy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from lydian.verifiers.math.bounds import TooLarge
from lydian.verifiers.math.expressions import are_equal, are_same_sets, has_relation, load_libraries
from lydian.verifiers.math.leaves import Labelled, compare_leaves, same_text, split_label
from lydian.verifiers.math.notation import tidy
from lydian.verifiers.math.policy import Policy
from lydian.verifiers.math.structure import Structure, is_comma_list, read_list, read_structure

_AS_SET = re.compile(r"\\(?:in|notin|mathbb|emptyset|cup|cap|setminus|le|ge|ne)(?![a-zA-Z])|[<>]")


def compare(
    gold: str, prediction: str, policy: Policy | None = None, *, is_percent_asked: bool = False
) -> tuple[bool, str]:
    """Whether the answers are equal, and one line that says why. The same either way round.

    is_percent_asked  whether the question asks for a percentage

    Raises TooLarge, MemoryError or RecursionError where the answers cannot be computed with.
    """
    policy = policy or Policy()
    gold, prediction = tidy(gold), tidy(prediction)
    if same_text(gold, prediction):
        return True, "the same text"
    if not gold or not prediction:
        return False, "one answer is empty"
    judge = _Judge(policy, is_percent_asked)
    is_equal = judge.compare(read_structure(gold), read_structure(prediction))
    return is_equal, judge.reason


def prepare() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Loads the libraries and returns what a worker answers a question by: {"is_equal", "reason"}, or {"fault"}."""
    load_libraries()

    def answer(question: Mapping[str, Any]) -> dict[str, Any]:
        policy, is_percent_asked = Policy(**question["policy"]), question["is_percent_asked"]
        try:
            is_equal, reason = compare(
                question["gold"], question["prediction"], policy, is_percent_asked=is_percent_asked
            )
        except TooLarge as error:
            return {"fault": f"too large to compute with: {error}"}
        return {"is_equal": is_equal, "reason": reason}

    return answer


class _Judge:
    def __init__(self, policy: Policy, is_percent_asked: bool) -> None:
        self.policy = policy
        self.is_percent_asked = is_percent_asked
        self.reason = "compared part by part"

    def compare(self, a: Structure, b: Structure) -> bool:
        if a.kind == b.kind == "leaf":
            if (
                is_comma_list(a.text)
                and is_comma_list(b.text)
                and self._collections(read_list(a.text), read_list(b.text))
            ):
                return True
            is_equal, self.reason = compare_leaves(a.text, b.text, self.policy, is_percent_asked=self.is_percent_asked)
            return is_equal
        if same_text(a.text, b.text):
            return True
        if a.kind == "leaf" or b.kind == "leaf":
            return self._with_leaf(a, b) if a.kind == "leaf" else self._with_leaf(b, a)
        if {a.kind, b.kind} <= {"list", "set"}:
            return self._collections(a, b)
        if a.kind == b.kind == "union":
            return self._cover(a.items, b.items) or self._by_sympy(a.text, b.text)
        if a.kind == b.kind == "matrix":
            return self._in_order(a.items, b.items)
        if {a.kind, b.kind} <= {"tuple", "interval"}:
            return a.ends == b.ends and self._in_order(a.items, b.items)
        kinds = {a.kind: a, b.kind: b}
        if kinds.keys() == {"matrix", "tuple"}:
            matrix, items = kinds["matrix"], kinds["tuple"]
            is_column = all(len(row.items) == 1 for row in matrix.items)
            cells = tuple(row.items[0] for row in matrix.items) if is_column else matrix.items[0].items
            return (is_column or len(matrix.items) == 1) and self._in_order(cells, items.items)
        if kinds.keys() == {"list", "tuple"}:
            return self._list_and_tuple(kinds["list"], kinds["tuple"])
        if "list" in kinds and all(has_relation(item.text) for item in kinds["list"].items):
            other = kinds[next(kind for kind in kinds if kind != "list")]
            relations = [item.text for item in kinds["list"].items]
            return self.policy.relations == "as_sets" and are_same_sets(relations, other.text)
        if "union" in kinds or "interval" in kinds:
            return self.policy.relations == "as_sets" and self._by_sympy(a.text, b.text)
        return False

    def _list_and_tuple(self, listed: Structure, items: Structure) -> bool:
        """`1, 2` and `a = 1, b = 2` against (1, 2): in the order written."""
        labels = [split_label(item.text) for item in listed.items if item.kind == "leaf"]
        named = [label for label in labels if isinstance(label, Labelled)]
        if named and (len(named) != len(listed.items) or len({label.label for label in named}) != len(named)):
            return False
        return self._in_order(listed.items, items.items)

    def _with_leaf(self, leaf: Structure, group: Structure) -> bool:
        """A leaf against something with parts: equal after its label is dropped, or as sets."""
        if is_comma_list(leaf.text, or_thousands=True):
            return self.compare(read_list(leaf.text), group)
        labelled = split_label(leaf.text)
        if labelled is not None and self.policy.labels == "optional":
            inner = read_structure(labelled.value)
            if inner.kind != "leaf":
                return self.compare(inner, group)
        member = re.match(r"^[a-zA-Z]\s*\\in(?![a-zA-Z])\s*(.+)$", leaf.text)
        if member and self.policy.relations == "as_sets":
            return self.compare(read_structure(member[1]), group)
        if group.kind == "list" and all(same_text(group.items[0].text, item.text) for item in group.items):
            return self.compare(leaf, group.items[0])
        if group.kind == "set" and not group.items:
            return same_text(leaf.text, r"\emptyset")
        if not _AS_SET.search(leaf.text) and r"\emptyset" not in group.text:
            self.reason = "one value and several"
            return False
        if group.kind == "list" and not any(has_relation(item.text) for item in group.items):
            return False
        return self.policy.relations == "as_sets" and self._by_sympy(leaf.text, group.text)

    def _collections(self, a: Structure, b: Structure) -> bool:
        if a.kind == b.kind == "list" and self.policy.lists == "ordered":
            return self._in_order(a.items, b.items)
        return self._cover(a.items, b.items)

    def _in_order(self, a: tuple[Structure, ...], b: tuple[Structure, ...]) -> bool:
        return len(a) == len(b) and all(self.compare(x, y) for x, y in zip(a, b, strict=True))

    def _cover(self, a: tuple[Structure, ...], b: tuple[Structure, ...]) -> bool:
        """Whether each member of either equals a member of the other."""
        if bool(a) != bool(b):
            return False
        left_a = [x for x in a if not any(same_text(x.text, y.text) for y in b)]
        left_b = [y for y in b if not any(same_text(x.text, y.text) for x in a)]
        return all(any(self.compare(x, y) for y in b) for x in left_a) and all(
            any(self.compare(x, y) for x in a) for y in left_b
        )

    def _by_sympy(self, a: str, b: str) -> bool:
        a, b = sorted((a, b))
        is_equal, self.reason = are_equal(a, b, tolerance=self.policy.tolerance, compare_sets=True)
        return is_equal
