import resource
import time
from concurrent.futures import ThreadPoolExecutor

from lydian.data.trajectory import Finish
from lydian.data.verdict import Outcome
from lydian.verifiers import make_verifier
from lydian.verifiers.verifier import bare_problem
from tests.verifiers.adversarial import attacks

WRONG = {Outcome.WRONG, Outcome.UNPARSED, Outcome.FAILED}


def test_hostile_completions_are_judged_from_threads_in_bounded_time_and_memory() -> None:
    """None says 7919. A limit of 0.5 s of processor time is at most 5 s on the wall; starting a worker comes on top.

    Every fifth of the 500; `benchmarks/verifiers.py` runs them all.
    """
    verifier, problem = make_verifier("math", cpu_seconds=0.5), bare_problem("7919")
    verifier.verify(problem, "x+1", Finish.STOP)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def judge(text: str) -> tuple[Outcome, float]:
        start = time.thread_time()
        return verifier.verify(problem, text, Finish.STOP).outcome, time.thread_time() - start

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(judge, attacks(500)[::5]))
    assert {outcome for outcome, _ in results} <= WRONG
    assert max(seconds for _, seconds in results) < 2.0  # in this process: reading is linear in the text
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_hostile_completions_do_not_stop_the_plain_verifiers() -> None:
    problem = bare_problem("7919")
    for name in ("numeric", "gsm8k"):
        verifier = make_verifier(name)
        assert {verifier.verify(problem, text, Finish.STOP).outcome for text in attacks(300)[::3]} <= WRONG
    choice = make_verifier("choice")
    assert all(choice.verify(bare_problem("J"), text, Finish.STOP).score == 0.0 for text in attacks(300)[::3])
