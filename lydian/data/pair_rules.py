"""Which of several judged replies to one prompt make a pair of a chosen and a rejected one: named rules on numbers.

Replies without a score never make a pair, nor do copies of an earlier reply. What is left is put in the order of the
rule, and pairs are taken from the front; a reply stands in one pair at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

from lydian.errors import InputError

PairRule = Literal["best_against_worst", "length_matched"]
Dropped = Literal["too_few", "all_right", "all_wrong", "no_margin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A judged reply.

    score       its score; None where the judgement failed
    length      tokens, or characters where there are no tokens
    is_correct  whether it counts as right
    content     what makes two replies the same: token ids or text
    """

    score: float | None
    length: int
    is_correct: bool
    content: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRules:
    """How pairs are chosen.

    rule         best_against_worst: the largest difference in score first; length_matched: the smallest difference in
                 length first, then the largest in score. Among equals the earlier replies
    margin       least difference in score of a pair; one of 0 is never a pair
    most         most pairs of one prompt
    wrong_chosen  let a reply that is not right be chosen over a worse one, for scores without a right and wrong

    Raises InputError for an unknown rule, a negative margin, or most < 1.
    """

    rule: PairRule = "best_against_worst"
    margin: float = 0.0
    most: int = 1
    wrong_chosen: bool = False

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("rule", self.rule in ORDERS, f"one of {', '.join(ORDERS)}"),
            ("margin", self.margin >= 0, "a number ≥ 0"),
            ("most", self.most >= 1, "an integer ≥ 1"),
        ):
            if not holds:
                given = repr(getattr(self, name))
                raise InputError(where=f"PairRules.{name}", given=given, expected=expected, fix="Correct the setting.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The pairs of one prompt.

    pairs               (chosen, rejected) as places among the candidates
    length_differences  length of the chosen minus length of the rejected, one a pair
    dropped             why there is no pair; None if there is one
    num_copies          replies left out because they equal an earlier one
    """

    pairs: tuple[tuple[int, int], ...]
    length_differences: tuple[int, ...]
    dropped: Dropped | None
    num_copies: int


def choose_pairs(candidates: Seq[Candidate], rules: PairRules) -> Choice:
    """The pairs of one prompt by the rules; a pure function of its arguments.

    >>> replies = [(1.0, 40, True), (0.0, 12, False), (1.0, 15, True), (0.0, 44, False)]
    >>> judged = [Candidate(score=s, length=n, is_correct=c, content=n) for s, n, c in replies]
    >>> choose_pairs(judged, PairRules()).pairs
    ((0, 1),)
    >>> choose_pairs(judged, PairRules(rule="length_matched", most=2)).pairs
    ((2, 1), (0, 3))
    """
    first: dict[Hashable, int] = {}
    scored = [(place, c) for place, c in enumerate(candidates) if c.score is not None]
    kept = [place for place, c in scored if first.setdefault(c.content, place) == place]
    gaps = {(i, j): _gap(candidates[i], candidates[j]) for i in kept for j in kept}
    allowed = [
        (i, j)
        for (i, j), gap in gaps.items()
        if gap > 0 and gap >= rules.margin and (candidates[i].is_correct or rules.wrong_chosen)
    ]
    order = ORDERS[rules.rule]
    allowed.sort(key=lambda pair: (*order(gaps[pair], *(candidates[place].length for place in pair)), *pair))
    used: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for pair in allowed:
        if len(pairs) < rules.most and used.isdisjoint(pair):
            pairs.append(pair)
            used |= set(pair)
    return Choice(
        pairs=tuple(pairs),
        length_differences=tuple(candidates[i].length - candidates[j].length for i, j in pairs),
        dropped=None if pairs else _why_dropped([candidates[place] for place in kept]),
        num_copies=len(scored) - len(kept),
    )


def pair_metrics(choices: Seq[Choice]) -> dict[str, float]:
    """What a step of pair building gave: counts, groups without a pair by reason, and whether the chosen are longer.

    pairs                   number of pairs
    dropped_REASON          groups without a pair: too_few (fewer than two replies that differ), all_right, all_wrong,
                            no_margin
    copies                  replies left out because they equal an earlier one
    pair_length_difference  mean of length of the chosen minus length of the rejected
    chosen_longer           share of pairs whose chosen reply is the longer one; ties count half

    The last two are left out where there is no pair.
    """
    differences = [difference for choice in choices for difference in choice.length_differences]
    dropped = Counter(choice.dropped for choice in choices if choice.dropped is not None)
    metrics = {"pairs": float(len(differences)), "copies": float(sum(choice.num_copies for choice in choices))}
    metrics |= {f"dropped_{reason}": float(count) for reason, count in sorted(dropped.items())}
    if differences:
        metrics["pair_length_difference"] = sum(differences) / len(differences)
        metrics["chosen_longer"] = sum((d > 0) + 0.5 * (d == 0) for d in differences) / len(differences)
    return metrics


def _gap(chosen: Candidate, rejected: Candidate) -> float:
    assert chosen.score is not None and rejected.score is not None  # those without a score are left out before
    return chosen.score - rejected.score


def _why_dropped(kept: Seq[Candidate]) -> Dropped:
    if len(kept) < 2:
        return "too_few"
    if not any(candidate.is_correct for candidate in kept):
        return "all_wrong"
    return "all_right" if all(candidate.is_correct for candidate in kept) else "no_margin"


ORDERS: Mapping[PairRule, Callable[[float, int, int], tuple[float, ...]]] = {
    "best_against_worst": lambda gap, chosen, rejected: (-gap,),
    "length_matched": lambda gap, chosen, rejected: (abs(chosen - rejected), -gap),
}
"""Rule → what pairs are sorted by, smallest first: of the difference in score and the two lengths."""
