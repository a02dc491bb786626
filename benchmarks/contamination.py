"""CPU time and memory of the contamination check on synthetic word problems: `python benchmarks/contamination.py`.

A million training texts of about 60 words against 10,000 problems, one process. A hundred problems are planted whole
and a hundred with other numbers; the check must find exactly these.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections.abc import Iterator

from lydian.evaluation.contamination import ContaminationIndex

NUM_PLANTED = 100


def words(rng: random.Random, num: int) -> str:
    """Words of a vocabulary of 3000 with Zipf-like frequencies, every eighth a number."""
    drawn = [f"w{int(3000 ** rng.random())}x" if i % 8 else str(rng.randrange(1000)) for i in range(num)]
    return " ".join(drawn)


def renumbered(text: str, rng: random.Random) -> str:
    return " ".join(str(rng.randrange(1000, 2000)) if word.isdigit() else word for word in text.split())


def training_texts(problems: list[str], num: int) -> Iterator[str]:
    """`num` texts, cheap to make: pieces of a pool of random words, with the planted problems among them."""
    rng = random.Random(1)
    pool = words(rng, 400_000).split()
    for i in range(num):
        if i < NUM_PLANTED:
            yield f"Question {i}: {problems[i]} Answer: 7"
        elif i < 2 * NUM_PLANTED:
            yield renumbered(problems[i], rng)
        else:
            start = rng.randrange(len(pool) - 60)
            middle = rng.randrange(len(pool) - 30)
            yield " ".join(pool[start : start + 30] + pool[middle : middle + 30])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-train", type=int, default=1_000_000)
    parser.add_argument("--num-problems", type=int, default=10_000)
    options = parser.parse_args()
    rng = random.Random(0)
    problems = [words(rng, 50) for _ in range(options.num_problems)]

    began = time.process_time()
    index = ContaminationIndex({f"p{i}": text for i, text in enumerate(problems)})
    building = time.process_time() - began
    spent = 0.0
    for i, text in enumerate(training_texts(problems, options.num_train)):
        began = time.process_time()
        index.add(f"train:{i}", [text])
        spent += time.process_time() - began
    result = index.result()
    assert set(result.contaminated) == {f"p{i}" for i in range(NUM_PLANTED)}, result.contaminated[:5]
    assert set(result.twins) == {f"p{i}" for i in range(NUM_PLANTED, 2 * NUM_PLANTED)}, result.twins[:5]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform != "darwin" else 2**30)
    print(f"{options.num_train:,} training texts against {options.num_problems:,} problems")
    print(f"index built in {building:.1f} s CPU; texts compared in {spent:.1f} s CPU; peak memory {memory:.2f} GiB")


if __name__ == "__main__":
    main()
