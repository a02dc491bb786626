"""Replies that somebody judged, and the groups in which they can be compared: `JudgedReply`, `JudgedGroup`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from statistics import fmean

from lydian.data.problems import Message
from lydian.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedReply:
    """A reply to a prompt, and what was said of it.

    reply       may be empty: models do that
    score       the higher the better, in the judge's own units; None where it failed or gives none
    labels      wanted or not, right or wrong: one from each annotator or verifier
    judge       fingerprint of what judged: verifier, reward model, rubric; "" where nobody said
    is_whole    False for a reply that a limit cut off
    num_tokens  its length, the stop token included; None where unknown
    """

    id: str
    messages: tuple[Message, ...]
    reply: str
    score: float | None = None
    labels: tuple[bool, ...] = ()
    judge: str = ""
    is_whole: bool = True
    num_tokens: int | None = None
    source: str = ""
    split: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_number = self.score is None or math.isfinite(self.score)
        if not is_number or not self.messages or self.messages[-1].role == "assistant":
            raise DataError(
                where=f"judged reply {self.id!r}",
                given=f"score {self.score}, messages from {[message.role for message in self.messages]}",
                expected="a finite score or none, and a prompt whose last message is not the assistant's",
                fix="Drop the row, or correct it.",
            )

    @property
    def is_correct(self) -> bool | None:
        """What most labels say; None without labels, or if as many say the one as the other."""
        votes = sum(self.labels) * 2 - len(self.labels)
        return None if votes == 0 else votes > 0

    @property
    def merit(self) -> float | None:
        """The score, or else the share of labels that say yes; None if there is neither."""
        if self.score is not None:
            return self.score
        return fmean(self.labels) if self.labels else None

    @property
    def words(self) -> tuple[str, ...]:
        """The reply without its blanks: what makes two replies the same."""
        return tuple(self.reply.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedGroup:
    """Different replies to one prompt, all judged by one judge, in the order in which they came."""

    members: tuple[JudgedReply, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.members[0].messages

    @property
    def judge(self) -> str:
        return self.members[0].judge

    @property
    def is_labelled(self) -> bool:
        """Whether right and wrong are known, and not only better and worse."""
        return any(member.is_correct is not None for member in self.members)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of each member in tokens, or in words where the tokens of one are unknown."""
        tokens = [member.num_tokens for member in self.members if member.num_tokens is not None]
        return tuple(tokens) if len(tokens) == len(self.members) else tuple(len(m.words) for m in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Groups of replies that can be compared, and what is not among them.

    groups        in order of their first replies; those that lost all their replies are absent
    num_groups    prompts, each as often as there were judges of it
    left_out      reason → replies: repeated (its labels are kept with the first), empty, cut_off, not_judged, tied (as
                  many labels for as against it), no_label (where others of the group have one)
    disagreement  mean over replies with several labels of the chance that two of these differ; None without such
    num_several   replies with several labels
    """

    groups: tuple[JudgedGroup, ...]
    num_groups: int
    left_out: Mapping[str, int]
    disagreement: float | None
    num_several: int


def group_replies(replies: Iterable[JudgedReply]) -> Grouped:
    """Replies by prompt and judge: scores of different judges are never compared.

    A reply that occurs again, blanks aside, is one reply: its labels are put together, its score is the mean.

    >>> ask = (Message(role="user", content="2 + 3 = ?"),)
    >>> rows = [("5", True), ("5", True), (" 5", False), ("6", False)]
    >>> replies = [JudgedReply(id=str(k), messages=ask, reply=r, labels=(is_up,)) for k, (r, is_up) in enumerate(rows)]
    >>> found = group_replies(replies)
    >>> [(m.reply, m.is_correct) for m in found.groups[0].members], dict(found.left_out)
    ([('5', True), ('6', False)], {'repeated': 2})
    >>> round(found.disagreement, 3)  # of the three pairs of labels of "5", two differ
    0.667
    """
    same: dict[tuple[tuple[Message, ...], str], dict[tuple[str, ...], list[JudgedReply]]] = {}
    num_replies = 0
    for reply in replies:
        num_replies += 1
        same.setdefault((reply.messages, reply.judge), {}).setdefault(reply.words, []).append(reply)
    merged = [[_merged(copies) for copies in group.values()] for group in same.values()]
    left_out: Counter[str] = Counter()
    groups = []
    for members in merged:
        has_labels = any(member.labels for member in members)
        reasons = [_why_left_out(member, has_labels) for member in members]
        left_out.update(reason for reason in reasons if reason)
        kept = tuple(member for member, reason in zip(members, reasons, strict=True) if not reason)
        groups += [JudgedGroup(members=kept)] if kept else []
    several = [member.labels for members in merged for member in members if len(member.labels) > 1]
    left_out["repeated"] = num_replies - sum(map(len, merged))
    return Grouped(
        groups=tuple(groups),
        num_groups=len(merged),
        left_out={reason: num for reason, num in sorted(left_out.items()) if num},
        disagreement=fmean(map(_disagreement, several)) if several else None,
        num_several=len(several),
    )


def _merged(copies: Seq[JudgedReply]) -> JudgedReply:
    first = copies[0]
    scores = [copy.score for copy in copies if copy.score is not None]
    return JudgedReply(
        id=first.id,
        messages=first.messages,
        reply=first.reply,
        score=fmean(scores) if scores else None,
        labels=tuple(label for copy in copies for label in copy.labels),
        judge=first.judge,
        is_whole=any(copy.is_whole for copy in copies),
        num_tokens=first.num_tokens,
        source=first.source,
        split=first.split,
        metadata=first.metadata,
    )


def _why_left_out(reply: JudgedReply, has_labels: bool) -> str | None:
    if reply.merit is None:
        return "not_judged"
    if not reply.words:
        return "empty"
    if not reply.is_whole:
        return "cut_off"  # with a stop token after it, it would be something that nobody said
    if reply.labels and reply.is_correct is None:
        return "tied"
    return "no_label" if has_labels and not reply.labels else None


def _disagreement(labels: Seq[bool]) -> float:
    num, ups = len(labels), sum(labels)
    return 2 * ups * (num - ups) / (num * (num - 1))
