"""Data from judged replies, by stated rules and with a report: pairs, feedback, and the best reply to each prompt.

Pure functions: equal replies and rules give equal items in equal order. What no item came from is counted by reason.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, Generic, Literal

from lydian.data.judged import Grouped, JudgedGroup, JudgedReply, group_replies
from lydian.data.pair_rules import Candidate, PairRules, choose_pairs
from lydian.data.problems import Conversation, Feedback, Item, Message, Preference
from lydian.errors import InputError

MAX_SIMILARITY = 0.95
"""Replies that agree in this share of their words or more are near-identical."""
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDifference:
    """Length of the chosen minus length of the rejected reply, over pairs.

    unit        tokens, or words where the tokens of some reply are unknown
    mean        of the difference
    num_longer, num_shorter, num_equal  pairs whose chosen reply is the longer, the shorter one, or as long
    p_value     exact two-sided sign test that longer and shorter are equally likely
    """

    unit: Literal["tokens", "words"]
    mean: float
    num_longer: int
    num_shorter: int
    num_equal: int
    p_value: float

    @property
    def share_longer(self) -> float:
        return self.num_longer / (self.num_longer + self.num_shorter + self.num_equal)

    @property
    def is_biased(self) -> bool:
        """Whether the chosen replies are systematically longer: what is trained on them may learn length alone."""
        return self.num_longer > self.num_shorter and self.p_value < SIGNIFICANT


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What was built of which replies, and what was left out and why.

    num_replies         judged replies read
    num_groups          prompts, each as often as there were judges of it
    num_items           pairs, or pieces of feedback, or best replies built
    left_out            reason → replies, as in `Grouped`
    dropped             reason → groups that nothing was built of: nothing_left (see left_out), too_few, all_right,
                        all_wrong, no_margin, near_identical
    num_near_identical  pairs dropped because the two replies agree in most words
    judges              fingerprint of verifier or rubric → groups; "" where nobody said
    disagreement        as in `Grouped`
    num_several         replies with several labels
    num_desirable       pieces of feedback that are desirable; None for pairs and best replies
    length              of pairs; None if there are none
    """

    num_replies: int
    num_groups: int
    num_items: int
    left_out: Mapping[str, int]
    dropped: Mapping[str, int]
    num_near_identical: int = 0
    judges: Mapping[str, int] = field(default_factory=dict)
    disagreement: float | None = None
    num_several: int = 0
    num_desirable: int | None = None
    length: LengthDifference | None = None

    def as_row(self) -> dict[str, Any]:
        """All of it as JSON values."""
        if self.length is None:
            return asdict(self)
        more = {"share_longer": self.length.share_longer, "is_biased": self.length.is_biased}
        return asdict(self) | {"length": asdict(self.length) | more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built(Generic[Item]):
    """What was built, in the order of the prompts, and the report."""

    items: tuple[Item, ...]
    report: BuildReport


def build_pairs(
    replies: Iterable[JudgedReply], rules: PairRules | None = None, *, max_similarity: float = MAX_SIMILARITY
) -> Built[Preference]:
    """Pairs of a chosen and a rejected reply to one prompt, by one judge.

    rules           which replies make a pair, and how many a prompt; where right and wrong are unknown, the better
                    score is chosen
    max_similarity  a pair whose `similarity` is at least this is dropped; above 1 keeps all

    An item's id names the two replies; its metadata are what both replies' say alike, with scores and judge.
    Raises InputError for a max_similarity that is not positive.
    """
    if max_similarity <= 0:
        raise InputError(
            where="max_similarity", given=max_similarity, expected="a number > 0", fix="Use 1.01 to keep all pairs."
        )
    rules = rules or PairRules()
    replies = list(replies)
    grouped = group_replies(replies)
    dropped: Counter[str] = Counter()
    pairs: list[tuple[JudgedReply, JudgedReply]] = []
    num_near = 0
    for group in grouped.groups:
        found, reason = _pairs_of(group, rules)
        distinct = [pair for pair in found if similarity(*pair) < max_similarity]
        num_near += len(found) - len(distinct)
        pairs += distinct
        if not distinct:
            dropped[reason or "near_identical"] += 1
    return Built(
        items=tuple(_preference(chosen, rejected) for chosen, rejected in pairs),
        report=replace(
            _report(replies, grouped, dropped, len(pairs)),
            num_near_identical=num_near,
            length=length_difference(pairs) if pairs else None,
        ),
    )


def build_feedback(replies: Iterable[JudgedReply], *, threshold: float | None = None) -> Built[Feedback]:
    """Every different reply with whether it is wanted: what its labels say, or a score of at least `threshold`.

    Raises InputError if there are replies without labels and no threshold.
    """
    replies = list(replies)
    grouped = group_replies(replies)
    items = [
        Feedback(
            id=member.id,
            messages=member.messages,
            reply=member.reply,
            is_desirable=_is_desirable(member, threshold),
            source=member.source,
            split=member.split,
            metadata=member.metadata,
        )
        for group in grouped.groups
        for member in group.members
    ]
    report = _report(replies, grouped, Counter(), len(items))
    return Built(items=tuple(items), report=replace(report, num_desirable=sum(item.is_desirable for item in items)))


def build_best(replies: Iterable[JudgedReply], *, threshold: float | None = None) -> Built[Conversation]:
    """Best-of-N: the best reply to each prompt, to imitate; the first of several that are equally good.

    threshold  least score of a best reply, if given. Where labels say what is right, only that can be best
    """
    replies = list(replies)
    grouped = group_replies(replies)
    dropped: Counter[str] = Counter()
    items = []
    for group in grouped.groups:
        right = [member for member in group.members if member.is_correct or not group.is_labelled]
        good = [member for member in right if threshold is None or _merit(member) >= threshold]
        if not good:
            dropped["no_margin" if right else "all_wrong"] += 1
            continue
        best = max(good, key=_merit)
        items.append(
            Conversation(
                id=best.id,
                messages=(*best.messages, Message(role="assistant", content=best.reply)),
                source=best.source,
                split=best.split,
                metadata=best.metadata,
            )
        )
    return Built(items=tuple(items), report=_report(replies, grouped, dropped, len(items)))


def similarity(one: JudgedReply, other: JudgedReply) -> float:
    """2 · M / T: M words stand in common blocks, found longest first, of the T words of both. 1 means the same words.

    Source: Ratcliff and Metzener (1988), as difflib.SequenceMatcher does it.

    >>> ask = (Message(role="user", content="2 + 3 + 4 = ?"),)
    >>> texts = ("2 + 3 = 5, 5 + 4 = 9", "2 + 3 = 5, 5 + 4 = 8")
    >>> similarity(*(JudgedReply(id=text, messages=ask, reply=text) for text in texts))  # 9 of 10 words each
    0.9
    """
    return difflib.SequenceMatcher(None, one.words, other.words, autojunk=False).ratio()


def length_difference(pairs: Seq[tuple[JudgedReply, JudgedReply]]) -> LengthDifference:
    """How much longer the chosen replies are. Raises InputError without pairs."""
    if not pairs:
        raise InputError(where="length_difference", given="no pairs", expected="at least one", fix="Build some first.")
    lengths = JudgedGroup(members=tuple(reply for pair in pairs for reply in pair)).lengths
    differences = [chosen - rejected for chosen, rejected in zip(lengths[::2], lengths[1::2], strict=True)]
    num_longer, num_shorter = (sum(sign * d > 0 for d in differences) for sign in (1, -1))
    has_tokens = all(reply.num_tokens is not None for pair in pairs for reply in pair)
    return LengthDifference(
        unit="tokens" if has_tokens else "words",
        mean=fmean(differences),
        num_longer=num_longer,
        num_shorter=num_shorter,
        num_equal=len(differences) - num_longer - num_shorter,
        p_value=sign_test(num_longer, num_shorter),
    )


def sign_test(num_more: int, num_less: int) -> float:
    """Exact two-sided p-value that more and less are equally likely: 2 · P(Bin(m + l, ½) ≤ min(m, l)), at most 1.

    >>> round(sign_test(8, 1), 4)  # 2 (1 + 9) / 2⁹
    0.0391
    """
    num = num_more + num_less
    log_half = num * math.log(2)
    tail = math.fsum(
        math.exp(math.lgamma(num + 1) - math.lgamma(k + 1) - math.lgamma(num - k + 1) - log_half)
        for k in range(min(num_more, num_less) + 1)
    )
    return min(1.0, 2 * tail)


def _pairs_of(group: JudgedGroup, rules: PairRules) -> tuple[list[tuple[JudgedReply, JudgedReply]], str | None]:
    """The pairs of a group, and the reason if there are none."""
    candidates = [
        Candidate(score=member.merit, length=length, is_correct=bool(member.is_correct), content=member.words)
        for member, length in zip(group.members, group.lengths, strict=True)
    ]
    choice = choose_pairs(candidates, rules if group.is_labelled else replace(rules, wrong_chosen=True))
    reason: str | None = choice.dropped
    if reason == "all_wrong" and not group.is_labelled:
        reason = "no_margin"  # nobody said what is right
    return [(group.members[i], group.members[j]) for i, j in choice.pairs], reason


def _preference(chosen: JudgedReply, rejected: JudgedReply) -> Preference:
    common = {key: value for key, value in chosen.metadata.items() if rejected.metadata.get(key) == value}
    facts: dict[str, object] = {"scores": [_merit(chosen), _merit(rejected)]}
    return Preference(
        id=f"{chosen.id}>{rejected.id}",
        messages=chosen.messages,
        chosen=chosen.reply,
        rejected=rejected.reply,
        source=chosen.source,
        split=chosen.split,
        metadata=common | facts | ({"judge": chosen.judge} if chosen.judge else {}),
    )


def _is_desirable(reply: JudgedReply, threshold: float | None) -> bool:
    if reply.is_correct is not None:
        return reply.is_correct
    if threshold is None:
        raise InputError(
            where=f"feedback of {reply.id!r}",
            given="a score and no label, and no threshold",
            expected="the score from which a reply is wanted",
            fix="Set threshold.",
        )
    return _merit(reply) >= threshold


def _merit(reply: JudgedReply) -> float:
    assert reply.merit is not None  # `group_replies` leaves out what nobody judged
    return reply.merit


def _report(replies: Seq[JudgedReply], grouped: Grouped, dropped: Counter[str], num_items: int) -> BuildReport:
    empty = grouped.num_groups - len(grouped.groups)
    return BuildReport(
        num_replies=len(replies),
        num_groups=grouped.num_groups,
        num_items=num_items,
        left_out=grouped.left_out,
        dropped=dict(sorted((dropped + Counter({"nothing_left": empty})).items())),
        judges=dict(sorted(Counter(group.judge for group in grouped.groups).items())),
        disagreement=grouped.disagreement,
        num_several=grouped.num_several,
    )
