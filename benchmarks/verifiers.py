"""How many answers a second the verifiers judge, and what hostile ones cost. One command:

    python benchmarks/verifiers.py [--seconds 5] [--json FILE]

Rates are given by the wall clock and by processor time (all processes together): on a busy machine only the second
says what the code costs. A row's `at 2 cores` is two seconds of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lydian.data.trajectory import Finish
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import bare_problem

_NUMERIC = [
    (str(n), text.format(n if n % 5 else n + 1))
    for n in range(100, 600)
    for text in ("He pays {0} in all.\n#### {0}", "The answer is ${0}.00.", r"So we get \boxed{{{0}}}.")
]
_SYMBOLIC = [
    (gold.replace("N", str(n)), rf"Hence the result is \boxed{{{text.replace('N', str(n))}}}.")
    for n in range(2, 40)
    for gold, text in (
        ("(x+N)^2", "x^2+2 \\cdot N x+N^2"),
        (r"\frac{\sqrt{N}}{2}", r"\frac{N}{2\sqrt{N}}"),
        ("x^2-N", "x^2+N"),
        (r"N\pi", r"\frac{2N\pi}{2}"),
        (r"\frac{1}{x+N}", r"\frac{2}{2x+2 \cdot N}"),
        (r"\left(N, \frac{\pi}{2}\right)", r"(N,\frac{2\pi}{4})"),
        (r"y=Nx+1", r"Nx-y+1=0"),
        (r"N+\sqrt{2}", r"\sqrt{2}-N"),
    )
]


def main() -> None:
    """Measures, prints a table, and one JSON object on the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="about how long each rate is measured")
    parser.add_argument("--attacks", type=int, default=500, help="how many hostile completions")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    figures = {
        "numeric": rate("numeric", _NUMERIC, options.seconds),
        "gsm8k": rate("gsm8k", _NUMERIC, options.seconds),
        "math, numbers": rate("math", _NUMERIC, options.seconds),
        "math, symbolic": rate("math", _SYMBOLIC, options.seconds),
    }
    print(f"{'':16}{'answers':>8}{'per s':>10}{'per CPU s':>11}{'at 2 cores':>12}{'correct':>9}")
    for name, row in figures.items():
        print(
            f"{name:16}{row['answers']:8.0f}{row['per_second']:10.0f}{row['per_cpu_second']:11.0f}"
            f"{2 * row['per_cpu_second']:12.0f}{row['share_correct']:9.2f}"
        )
    hostile = robustness(options.attacks)
    print(
        f"{hostile['answers']:.0f} hostile answers: {hostile['outcomes']}, longest {hostile['longest_seconds']:.2f} s,",
        end=" ",
    )
    print(f"parent's memory +{hostile['parent_growth_mib']:.0f} MiB, load average {os.getloadavg()[0]:.1f}")
    result = json.dumps({"rates": figures, "hostile": hostile, "cores": os.cpu_count()})
    print(result)
    if options.json:
        options.json.write_text(result + "\n")


def rate(name: str, cases: list[tuple[str, str]], seconds: float) -> dict[str, float]:
    """Answers a second of one verifier, its workers warm, with as many threads as it can use."""
    verifier = make_verifier(name)
    threads = getattr(verifier, "num_threads", 1)
    items = [(bare_problem(gold), text) for gold, text in cases]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda item: verifier.verify(*item, Finish.STOP), items[: 4 * threads]))  # starts the workers
        start, cpu, count, correct = time.perf_counter(), _processor_time(), 0, 0
        while time.perf_counter() - start < seconds:
            verdicts = pool.map(lambda item: verifier.verify(*item, Finish.STOP), items) if threads > 1 else (
                verifier.verify(*item, Finish.STOP) for item in items
            )  # fmt: skip
            correct += sum(verdict.is_correct for verdict in verdicts)
            count += len(items)
        wall, used = time.perf_counter() - start, _processor_time() - cpu
    return {
        "answers": count,
        "per_second": count / wall,
        "per_cpu_second": count / used,
        "share_correct": correct / count,
    }


def robustness(count: int) -> dict[str, object]:
    """Outcomes, longest time and memory over hostile answers, from four threads."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.verifiers.adversarial import attacks

    verifier = make_verifier("math", cpu_seconds=1.0)
    made, problem = attacks(count), bare_problem("7919")

    def judge(text: str) -> tuple[str, float]:
        start = time.perf_counter()
        outcome = verifier.verify(problem, text, Finish.STOP).outcome
        return outcome.value, time.perf_counter() - start

    judge("2")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(judge, made))
    return {
        "answers": len(made),
        "outcomes": dict(Counter(outcome for outcome, _ in results)),
        "longest_seconds": max(seconds for _, seconds in results),
        "parent_growth_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def _processor_time() -> float:
    """Of this process and of the live children (on Linux), in seconds."""
    total = sum(os.times()[:4])
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == os.getpid():
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


if __name__ == "__main__":
    main()
