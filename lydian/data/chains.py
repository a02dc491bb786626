"""Chains of integer operations: what generated problems are about, and the split that each belongs to."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lydian.errors import DataError

LARGEST = 99
"""No intermediate result is negative or larger than this."""

SPLITS = {"train": (0.0, 0.7), "heldout": (0.7, 0.9), "validation": (0.9, 1.0)}
"""Share of all chains that belongs to each split."""

_PHRASES: dict[str, tuple[str, ...]] = {
    "+": ("Add {}.", "Gain {}.", "Put in {}."),
    "-": ("Subtract {}.", "Lose {}.", "Take away {}."),
    "*": ("Times {}.", "Multiply by {}."),
    "/": ("Divide by {}.", "Share among {}."),
}


@dataclass(frozen=True, slots=True)
class Chain:
    """A starting number and operations (symbol, operand, wording)."""

    start: int
    operations: tuple[tuple[str, int, int], ...]

    @property
    def question(self) -> str:
        """The chain in words."""
        words = [_PHRASES[symbol][wording].format(operand) for symbol, operand, wording in self.operations]
        return " ".join([f"Start with {self.start}.", *words])

    def values(self) -> list[int]:
        """The start, and the result of each operation."""
        values = [self.start]
        for symbol, operand, _ in self.operations:
            values.append(apply(values[-1], symbol, operand))
        return values

    def steps(self, values: list[int]) -> str:
        """The operations written out with these values, right or wrong."""
        done = zip(itertools.pairwise(values), self.operations, strict=True)
        return ", ".join(f"{before}{symbol}{operand}={after}" for (before, after), (symbol, operand, _) in done)


def distinct_chains(num: int, split: str, min_level: int, max_level: int, seed: int) -> list[Chain]:
    """`num` chains with different questions. Raises DataError if there are not so many."""
    rng = np.random.Generator(np.random.Philox(key=[seed, sorted(SPLITS).index(split) if split in SPLITS else 0]))
    chains = endless_chains(split, min_level, max_level, rng)
    found: dict[str, Chain] = {}
    for _ in range(10 * num):
        if len(found) == num:
            break
        chain = next(chains)
        found.setdefault(chain.question, chain)
    if len(found) < num:
        raise DataError(
            where="arithmetic",
            given=f"num={num} for levels {min_level} to {max_level}",
            expected=f"at most about {len(found)} different problems at these levels",
            fix="Ask for fewer, or raise max_level.",
        )
    return list(found.values())


def endless_chains(split: str, min_level: int, max_level: int, rng: np.random.Generator) -> Iterator[Chain]:
    """Chains of a split, drawn without end. Raises DataError for another split, or levels that make no sense."""
    if split not in SPLITS or not 1 <= min_level <= max_level:
        raise DataError(
            where="arithmetic",
            given=f"split={split!r}, levels {min_level} to {max_level}",
            expected=f"a split of {', '.join(SPLITS)} and 1 ≤ min_level ≤ max_level",
            fix="Correct the setting.",
        )
    low, high = SPLITS[split]
    while True:
        chain = _chain(int(rng.integers(min_level, max_level + 1)), rng)
        if low <= _hash_share(chain) < high:
            yield chain


def _chain(level: int, rng: np.random.Generator) -> Chain:
    start = value = int(rng.integers(2, 40))
    operations = []
    for _ in range(level):
        symbol, operand = _operation(value, rng)
        operations.append((symbol, operand, int(rng.integers(len(_PHRASES[symbol])))))
        value = apply(value, symbol, operand)
    return Chain(start, tuple(operations))


def _operation(value: int, rng: np.random.Generator) -> tuple[str, int]:
    """A random operation whose result stays an integer within 0 and LARGEST."""
    while True:
        symbol = str(rng.choice(("+", "+", "-", "-", "*", "/")))
        operand = int(rng.integers(2, 21) if symbol in "+-" else rng.integers(2, 5))
        if symbol == "/" and (value % operand or value == 0):
            continue
        if 0 <= apply(value, symbol, operand) <= LARGEST:
            return symbol, operand


def apply(value: int, symbol: str, operand: int) -> int:
    """value symbol operand; a division's remainder is dropped."""
    results = {"+": value + operand, "-": value - operand, "*": value * operand, "/": value // operand}
    return results[symbol]


def _hash_share(chain: Chain) -> float:
    """Where in [0, 1) a chain falls: by its numbers and operations, not its wording."""
    key = f"{chain.start} " + " ".join(f"{symbol}{operand}" for symbol, operand, _ in chain.operations)
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
