"""`math`: the completion's final answer equals the gold answer as mathematics."""

from __future__ import annotations

import re

from lydian.data.problems import Problem
from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome, Verdict
from lydian.errors import RecipeError
from lydian.verifiers.math.policy import Base, Commas, Labels, Lists, Percent, Policy, Relations, Units
from lydian.verifiers.numbers import are_equal, asks_for_percent, find_numbers, parse_number
from lydian.verifiers.reading import NoAnswer, answer_part, clean, marked_answer, single_number
from lydian.verifiers.verifier import Example, fingerprint, gold_of, judged, not_found, register, unreadable_gold
from lydian.verifiers.worker import num_workers, shared_pool

MAX_CHARACTERS = 2000
"""A longer answer is not looked at."""

_PLAIN = re.compile(r"[-+]?\$?[\d.,/ ]+\\?%?|[-+]?\\frac\{\d+\}\{\d+\}")
_GROUPS = re.compile(r"[-+]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_SPAN = re.compile(r"\$\$?([^$]+)\$\$?|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_WORD = re.compile(r"(?<![\\a-zA-Z{])(?!(?:sqrt|sin|cos|tan|log|ln|exp|pi|inf|and|or)\b)[^\W\d_]{2,}")
_UNSPACED = re.compile(r"[\u3040-\u9fff].*\d", re.DOTALL)  # Chinese or Japanese before a number: a sentence, no unit
_EDGES = " \n\t*:=.,;"
_LEAD_IN = re.compile(r"^.*\banswer\s*(?:\bis\b|:|=)\s*", re.IGNORECASE | re.DOTALL)
_WRAPPED_WORDS = re.compile(r"\\(?:text|mbox|textbf|textrm|textnormal)\s*\{([^{}]*)\}")


class Math:
    """The final answer equals the gold answer: as a number, expression, equation, interval, set, tuple, matrix or text.

    The answer is the marked one (`lydian.verifiers.reading` says where). Without a mark it is the whole completion if
    that is no more than an expression, else the last formula or number, whichever ends later.

    Two plain numbers are compared here, exactly (12 digits suffice for a decimal); anything else in a worker process,
    by math-verify and sympy.

    answer_only  the completion is the bare final answer
    cpu_seconds  limit of processor time for one comparison, without the wait for a free worker; past it it is FAILED
    percent      "asked": 50% is 1/2, and 50 if the question asks for a percentage; "fraction": never 50; "either"
    units        "optional": may be missing on one side, and 1 km is 1000 m; "ignored"; "required": on both or neither
    base         "written": the digits and the base must agree, one side may leave the base out; "value": 101_2 is 5
    labels       "optional": x = 5 is 5; "required": it is not
    relations    "as_sets": x > 2 is (2, ∞); "distinct": a relation equals no set
    lists        "unordered": 1, 2 is 2, 1; "ordered": it is not
    commas       "either": 1,234 is 1234 and 1,5 is 1.5; "thousands": never a decimal comma; "decimal": always one
    digits       a decimal equals an exact value if they agree to this many significant digits

    Outcomes: UNPARSED, no answer, an empty box, or more than 2000 characters; TRUNCATED, the completion was cut off and
    no answer is marked; FAILED, no verdict within the limits; else CORRECT or WRONG.
    """

    name = "math"

    def __init__(
        self,
        *,
        answer_only: bool = False,
        cpu_seconds: float = 3.0,
        percent: Percent = "asked",
        units: Units = "optional",
        base: Base = "written",
        labels: Labels = "optional",
        relations: Relations = "as_sets",
        lists: Lists = "unordered",
        commas: Commas = "either",
        digits: int = 12,
    ) -> None:
        self.policy = Policy(
            percent=percent,
            units=units,
            base=base,
            labels=labels,
            relations=relations,
            lists=lists,
            commas=commas,
            digits=digits,
        )
        if not cpu_seconds > 0:
            raise RecipeError(
                where="math.cpu_seconds",
                given=repr(cpu_seconds),
                expected="a number > 0",
                fix="Give a limit, such as 3.",
            )
        self.answer_only = answer_only
        self.cpu_seconds = cpu_seconds
        self.num_threads = num_workers()
        settings = {"answer_only": answer_only, "cpu_seconds": cpu_seconds} | self.policy.settings()
        packages = ("math-verify", "sympy", "latex2sympy2-extended")
        self.fingerprint = fingerprint(self.name, settings, packages)

    def check(self, problem: Problem) -> None:
        gold = gold_of(problem, self)
        if len(gold) > MAX_CHARACTERS:
            raise unreadable_gold(problem, self, expected=f"at most {MAX_CHARACTERS} characters")
        fault = _fault(clean(gold))
        if fault is not None:
            raise unreadable_gold(problem, self, expected=fault)

    def verify(self, problem: Problem, text: str, finish: Finish) -> Verdict:
        gold = clean(gold_of(problem, self))
        try:
            answer = self._final_answer(text, finish)
        except NoAnswer as error:
            return not_found(self, finish, str(error))
        known = _compare_numbers(gold, answer, self.policy, problem.question)
        if known is not None:
            reason = f"{answer} {'=' if known else '≠'} {gold}"
            return judged(self, Outcome.CORRECT if known else Outcome.WRONG, answer, reason)
        comparison = shared_pool().compare(
            gold,
            answer,
            cpu_seconds=self.cpu_seconds,
            policy=self.policy,
            is_percent_asked=asks_for_percent(problem.question),
        )
        if comparison.is_equal is None:
            return judged(self, Outcome.FAILED, answer, comparison.reason)
        return judged(self, Outcome.CORRECT if comparison.is_equal else Outcome.WRONG, answer, comparison.reason)

    def _final_answer(self, text: str, finish: Finish) -> str:
        if self.answer_only:
            answer, is_marked = clean(text[: MAX_CHARACTERS + 1]), True
        else:
            part = answer_part(text)
            marked = marked_answer(part)
            is_marked = marked is not None and (marked.is_closed or finish is Finish.STOP)
            answer = _unwrap(marked.text) if marked else _unmarked(part)
        answer = answer.strip()
        if not answer.strip(_EDGES + "$\\[](){}"):
            raise NoAnswer("no answer")
        if len(answer) > MAX_CHARACTERS:
            raise NoAnswer(f"an answer of {len(answer)} characters")
        if finish is not Finish.STOP and not is_marked:
            raise NoAnswer(f"{answer:.60} may be unfinished work")
        return answer


def _fault(gold: str) -> str | None:
    """What is missing from a gold answer that nobody could read; None if nothing is."""
    if not re.search(r"[^\W_]", gold) and not re.search(r"\\[a-zA-Z]|\\\{|\{\}|[()\[\]]", gold):
        return "a number, letter or sign in it"
    if re.fullmatch(r"\$*\s*\\(?:boxed|text)\s*\{\s*\}\s*\$*", gold):
        return "something between the braces"
    bare = re.sub(r"\\.", "", gold)
    depth = 0
    for char in bare:
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth < 0:
            break
    if depth:
        return "as many closing braces as opening ones, in order"
    if gold.count(r"\begin{") != gold.count(r"\end{"):
        return r"an \end for each \begin"
    if re.search(r"(?:[-+*/^_=<,]|\\(?:frac|cdot|times|sqrt|le|ge))\s*$", gold):
        return "something after its last sign"
    return None


def _unwrap(marked: str) -> str:
    """What is meant at the mark: the formula or number in a sentence, the answer after a lead-in inside a box."""
    text = _LEAD_IN.sub("", _WRAPPED_WORDS.sub(r"\1", marked)) if _LEAD_IN.match(marked) else marked
    spans = [span for span in _spans(text) if not _is_prose(span)]
    if spans and (_is_prose(text) or len(spans) == 1):
        return spans[0]
    text = re.sub(r"\\?\$|\\[()\[\]]", "", text).strip(_EDGES)
    if _is_prose(_WRAPPED_WORDS.sub("", text)):
        return single_number(text, index=0).text if find_numbers(text) else text
    return text


def _is_prose(text: str) -> bool:
    """Whether this is a sentence rather than a formula, a name, or a number with its unit."""
    return len(_WORD.findall(text)) > 1 or bool(_UNSPACED.search(text))


def _unmarked(part: str) -> str:
    stripped = part.strip()
    is_formula = re.match(r"\\[a-zA-Z]", stripped) or not _is_prose(stripped)
    if len(stripped) <= 200 and "\n" not in stripped and is_formula:
        return _unwrap(stripped)
    spans = [match for match in _SPAN.finditer(part) if not _is_prose(match[0])]
    rest = part[spans[-1].end() :] if spans else ""
    if spans and not find_numbers(rest[:MAX_CHARACTERS]):
        return _spans(spans[-1][0])[0]
    return single_number(part, index=-1).text


def _spans(text: str) -> list[str]:
    """The formulas between dollars or brackets."""
    return [next(filter(None, groups)).strip() for groups in _SPAN.findall(text)]


def _compare_numbers(gold: str, answer: str, policy: Policy, question: str) -> bool | None:
    """Whether two plain numbers are equal; None if they are not plain numbers, or the policy has a say in it."""
    if not _PLAIN.fullmatch(gold) or not _PLAIN.fullmatch(answer) or _is_left_to_policy(gold, answer, policy):
        return None
    a, b = parse_number(gold), parse_number(answer)
    if a is None or b is None or a.value is None or b.value is None:
        return None
    return are_equal(b, a, question=question, relative_tolerance=policy.tolerance)


def _is_left_to_policy(gold: str, answer: str, policy: Policy) -> bool:
    both = gold + answer
    return (
        "," in both and not (_GROUPS.fullmatch(gold) and _GROUPS.fullmatch(answer) and policy.commas != "decimal")
    ) or ("%" in both and policy.percent != "asked")


register(
    "math",
    Math,
    examples=(
        Example(gold=r"\frac{1}{2}", text=r"\boxed{\frac{2}{4}}", outcome=Outcome.CORRECT, extracted=r"\frac{2}{4}"),
        Example(gold="(r+5)^2", text="The answer is $(r+5)(r+5)$.", outcome=Outcome.CORRECT, extracted="(r+5)(r+5)"),
        Example(gold="4", text=r"\boxed{3}, no, \boxed{4}", outcome=Outcome.CORRECT, extracted="4"),
        Example(gold="4", text=r"\boxed{3} \boxed{4}", outcome=Outcome.WRONG, extracted="3 or 4"),
        Example(gold="4", text=r"\boxed{}", outcome=Outcome.UNPARSED),
        Example(gold="4", text=r"<think>\boxed{4}</think> I cannot say.", outcome=Outcome.UNPARSED),
        Example(gold="4", text="<think> 2 + 2 </think> <answer>4</answer>", outcome=Outcome.CORRECT, extracted="4"),
        Example(gold="4", text="Then x = 4, and", finish=Finish.LENGTH, outcome=Outcome.TRUNCATED),
        Example(gold="33.3", text=r"\boxed{\frac{100}{3}}", outcome=Outcome.WRONG, extracted=r"\frac{100}{3}"),
        Example(
            gold="2x+4y-3=0",
            text=r"y=-\frac{1}{2}x+\frac{3}{4}",
            settings={"answer_only": True},
            outcome=Outcome.CORRECT,
            extracted=r"y=-\frac{1}{2}x+\frac{3}{4}",
        ),
        Example(
            gold="1",
            text=r"\boxed{9^{9^{9^{9}}}}",
            settings={"cpu_seconds": 0.5},
            outcome=Outcome.FAILED,
            extracted="9^{9^{9^{9}}}",
        ),
    ),
)
