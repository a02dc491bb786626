"""Did the training data hold the test? N-grams of the evaluation stay in memory, training texts stream past them.

    tokens ─▶ n-grams, numbers kept     ─▶ share of a problem found in one training text: contaminated
          └─▶ n-grams, numbers masked   ─▶ found only so: a template twin (same words, other numbers)
          └─▶ all tokens                ─▶ an exact duplicate

A training text costs one pass of C-level set look-ups; only one that hits is looked at in Python. Memory holds the
evaluation's n-grams and two 64-bit hashes for each training text, whatever the texts' length.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from lydian.errors import InputError

NUM_GRAM = 8
"""Tokens of an n-gram: short enough for word problems of twenty words, long enough not to occur by chance."""

SHARE = 0.5
"""Share of a problem's tokens that one training text must cover for the problem to count as contaminated."""

COMMON = (50, 0.01)
"""An n-gram in more problems than this many and than this share of them is the benchmark's phrase, not a problem's own:
it is left out. This also bounds what one training text can cost."""

MASK = "0"
# A number whole, an ideograph or kana alone (they are written without blanks), else a run of letters and digits.
_SCRIPTS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN = re.compile(rf"\d+(?:[.,]\d+)*(?!\w)|[{_SCRIPTS}]|[^\W_{_SCRIPTS}]+")


def tokens_of(text: str) -> list[str]:
    """Lower-cased words and whole numbers; marks and blanks fall away.

    >>> tokens_of("Sam's 1,200 eggs cost $3.50!")
    ['sam', 's', '1,200', 'eggs', 'cost', '3.50']
    """
    return _TOKEN.findall(text.lower())


def masked(tokens: Seq[str]) -> list[str]:
    """The tokens with every number replaced by 0: equal for problems that differ by their numbers only."""
    return [MASK if token[0].isdigit() else token for token in tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What one problem has in common with the training texts.

    problem_id
    share         largest share of its tokens within n-grams that one training text has too, numbers kept
    masked_share  the same with numbers masked; at least `share`
    is_exact      a training text is this problem, token for token
    place         the training text that covers most of it, numbers kept before masked; None if nothing was found
    """

    problem_id: str
    share: float
    masked_share: float
    is_exact: bool
    place: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """Overlap of training texts with evaluation problems.

    overlaps   one for each problem, in order
    threshold  share of a problem from which it counts
    num_gram   tokens of an n-gram
    num_train  training texts read
    num_common  n-grams left out because too many problems have them (COMMON), numbers kept and masked together
    train_repeats, train_twins  training texts that equal an earlier one, or equal one but for numbers
    eval_repeats, eval_twins    (problem id, id of the earlier one) inside the evaluation, in the same two senses
    """

    overlaps: tuple[Overlap, ...]
    threshold: float
    num_gram: int
    num_train: int
    num_common: int
    train_repeats: int
    train_twins: int
    eval_repeats: tuple[tuple[str, str], ...]
    eval_twins: tuple[tuple[str, str], ...]

    @property
    def exact(self) -> tuple[str, ...]:
        """Ids of problems that a training text repeats token for token."""
        return tuple(o.problem_id for o in self.overlaps if o.is_exact)

    @property
    def contaminated(self) -> tuple[str, ...]:
        """Ids of problems found in training: exact duplicates, or at least `threshold` of their tokens."""
        return tuple(o.problem_id for o in self.overlaps if o.is_exact or o.share >= self.threshold)

    @property
    def twins(self) -> tuple[str, ...]:
        """Ids of problems of which training holds the template only: found with numbers masked, not with numbers."""
        found = set(self.contaminated)
        return tuple(
            o.problem_id for o in self.overlaps if o.masked_share >= self.threshold and o.problem_id not in found
        )

    @property
    def clean(self) -> tuple[str, ...]:
        """Ids of all other problems."""
        dirty = {*self.contaminated, *self.twins}
        return tuple(o.problem_id for o in self.overlaps if o.problem_id not in dirty)

    def as_row(self) -> dict[str, Any]:
        """All of it as JSON values; of the overlaps, those above 0."""
        found = [o for o in self.overlaps if o.masked_share > 0 or o.is_exact]
        return {
            "num_problems": len(self.overlaps),
            "num_train": self.num_train,
            "num_gram": self.num_gram,
            "num_common": self.num_common,
            "threshold": self.threshold,
            "exact": list(self.exact),
            "contaminated": list(self.contaminated),
            "template_twins": list(self.twins),
            "train": {"repeats": self.train_repeats, "template_twins": self.train_twins},
            "evaluation": {
                "repeats": [list(pair) for pair in self.eval_repeats],
                "template_twins": [list(pair) for pair in self.eval_twins],
            },
            "overlaps": [
                {
                    "id": o.problem_id,
                    "share": o.share,
                    "masked_share": o.masked_share,
                    "is_exact": o.is_exact,
                    "place": o.place,
                }
                for o in found
            ],
        }


@dataclass(slots=True)
class _Grams:
    """N-grams of the problems by hash: where each stands."""

    num: int
    places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, problem: int, tokens: Seq[str]) -> None:
        for start, key in enumerate(self.hashes(tokens)):
            self.places.setdefault(key, []).append((problem, start))

    def drop_common(self, limit: float) -> int:
        """Leaves out the n-grams that more than `limit` problems have; how many."""
        common = [key for key, at in self.places.items() if len(at) > limit and len({p for p, _ in at}) > limit]
        for key in common:
            del self.places[key]
        return len(common)

    def hashes(self, tokens: Seq[str]) -> Iterator[int]:
        return map(hash, zip(*(tokens[i:] for i in range(self.num)), strict=False))

    def covered(self, tokens: Seq[str]) -> Mapping[int, set[int]]:
        """Problem → which of its tokens stand within n-grams of this text. Empty, and fast, for nearly every text."""
        if self.places.keys().isdisjoint(self.hashes(tokens)):
            return {}
        found: dict[int, set[int]] = defaultdict(set)
        for key in set(self.hashes(tokens)):
            for problem, start in self.places.get(key, ()):
                found[problem].update(range(start, start + self.num))
        return found


class ContaminationIndex:
    """The evaluation's side: built once, then fed with training texts by `add`, one row a time.

    problems   problem id → what is asked
    num_gram   tokens of an n-gram; a shorter problem is found as an exact duplicate only
    threshold  share of a problem's tokens from which it counts as contaminated

    Hashes are Python's own of token tuples, 64 bits: with 10⁶ n-grams in memory and 10⁸ read, a false hit has a chance
    below 10⁻⁴.
    """

    def __init__(self, problems: Mapping[str, str], *, num_gram: int = NUM_GRAM, threshold: float = SHARE) -> None:
        if not problems or num_gram < 1 or not 0 < threshold <= 1:
            raise InputError(
                where="ContaminationIndex",
                given=f"{len(problems)} problems, num_gram {num_gram}, threshold {threshold}",
                expected="problems, num_gram ≥ 1, a threshold in (0, 1]",
                fix="Correct the settings, or check the evaluation's file.",
            )
        self._ids = list(problems)
        self._num_gram = num_gram
        self._threshold = threshold
        self._kept, self._masked = _Grams(num_gram), _Grams(num_gram)
        self._exact: dict[int, list[int]] = {}
        self._lengths: list[int] = []
        self.eval_repeats: list[tuple[str, str]] = []
        self.eval_twins: list[tuple[str, str]] = []
        self._index(problems.values())
        num = len(self._ids)
        limit = max(COMMON[0], COMMON[1] * num)
        self._num_common = self._kept.drop_common(limit) + self._masked.drop_common(limit)
        self._shares, self._masked_shares = [0.0] * num, [0.0] * num
        self._is_exact = [False] * num
        self._places: list[str | None] = [None] * num
        self._num_train = self._train_repeats = self._train_twins = 0
        self._seen: set[int] = set()
        self._seen_masked: set[int] = set()

    def _index(self, texts: Iterable[str]) -> None:
        twins: dict[int, int] = {}
        for number, text in enumerate(texts):
            tokens = tokens_of(text)
            template = masked(tokens)
            self._lengths.append(len(tokens))
            self._kept.add(number, tokens)
            self._masked.add(number, template)
            same = self._exact.setdefault(hash(tuple(tokens)), [])
            twin = twins.setdefault(hash(tuple(template)), number)
            if same:
                self.eval_repeats.append((self._ids[number], self._ids[same[0]]))
            elif twin != number:
                self.eval_twins.append((self._ids[number], self._ids[twin]))
            same.append(number)

    def add(self, place: str, texts: Iterable[str]) -> None:
        """One row of training data: its texts (question, answer, messages, …) are compared one by one."""
        whole: list[str] = []
        for text in texts:
            tokens = tokens_of(text)
            whole += tokens
            for problem in self._exact.get(hash(tuple(tokens)), ()) if tokens else ():
                if not self._is_exact[problem]:
                    self._is_exact[problem], self._places[problem] = True, place
            if len(tokens) >= self._num_gram:
                self._note(self._kept.covered(tokens), self._shares, place)
                self._note(self._masked.covered(masked(tokens)), self._masked_shares, place)
        self._count(whole)

    def _note(self, covered: Mapping[int, set[int]], shares: list[float], place: str) -> None:
        for problem, positions in covered.items():
            share = len(positions) / self._lengths[problem]
            if share > shares[problem]:
                # With numbers kept counts more: a masked share names the place only where the other found nothing.
                if not self._is_exact[problem] and (shares is self._shares or not self._shares[problem]):
                    self._places[problem] = place
                shares[problem] = share

    def _count(self, tokens: Seq[str]) -> None:
        self._num_train += 1
        key, template = hash(tuple(tokens)), hash(tuple(masked(tokens)))
        if key in self._seen:
            self._train_repeats += 1
        elif template in self._seen_masked:
            self._train_twins += 1
        self._seen.add(key)
        self._seen_masked.add(template)

    def result(self) -> Contamination:
        """What was found so far."""
        return Contamination(
            overlaps=tuple(
                Overlap(problem_id=i, share=share, masked_share=max(share, other), is_exact=is_exact, place=place)
                for i, share, other, is_exact, place in zip(
                    self._ids, self._shares, self._masked_shares, self._is_exact, self._places, strict=True
                )
            ),
            threshold=self._threshold,
            num_gram=self._num_gram,
            num_train=self._num_train,
            num_common=self._num_common,
            train_repeats=self._train_repeats,
            train_twins=self._train_twins,
            eval_repeats=tuple(self.eval_repeats),
            eval_twins=tuple(self.eval_twins),
        )
