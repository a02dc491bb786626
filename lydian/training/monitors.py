"""What a round's completions say beyond their reward, and the alarms that a person should hear.

A reward is followed wherever it leads. The monitor judges the same completions with a verifier that training never
uses, counts the usual ways of cheating and decay, and compares the stage's last rounds with its first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from lydian.data.verdict import Group, Outcome, Scored
from lydian.text.template import Template
from lydian.verifiers.verifier import Verifier, verify_all

ANSWERS = re.compile(r"####\s*([^\s]+)|\\boxed\{([^{}]*)\}|answer is:?\s*([^\s.]+)", re.IGNORECASE)
"""Where completions state answers; two different ones in a completion are a list of candidates."""
LEAST_ROUNDS = 6
"""Rounds before first and last are compared."""


def monitor_metrics(groups: Seq[Group], template: Template, heldout: Verifier | None) -> dict[str, float]:
    """Facts about a round's completions.

    heldout  a verifier that the training does not use, or None

    unparsed          share of completions without an answer
    several_answers   share that state more than one different answer
    repetition        mean share of 4-grams of tokens that occurred before in the same completion
    distinct_answers  different extracted answers a group, as a share of its completions
    all_right_groups, all_wrong_groups  shares of groups; all_wrong_level_N by the problems' level
    reward_short, reward_long  mean reward of the shorter and of the longer half of the completions
    heldout_accuracy  share that the held-out verifier finds correct
    """
    members = [(group, member) for group in groups for member in group.members]
    texts = [template.decode(member.trajectory.turns[-1].completion.tokens) for _, member in members]
    scored = sorted(
        (member.trajectory.num_sampled_tokens, member.verdict.score)
        for _, member in members
        if member.verdict.score is not None
    )
    half = len(scored) // 2
    metrics = {
        "unparsed": _mean([member.verdict.outcome is Outcome.UNPARSED for _, member in members]),
        "several_answers": _mean([len(_answers(text)) > 1 for text in texts]),
        "repetition": _mean([_repetition(member) for _, member in members]),
        "distinct_answers": _mean([_num_distinct(group) / len(group.members) for group in groups]),
        "all_right_groups": _mean([group.num_correct == len(group.members) for group in groups]),
        "all_wrong_groups": _mean([group.num_correct == 0 for group in groups]),
    }
    metrics |= _all_wrong_by_level(groups)
    if half:
        metrics["reward_short"] = _mean([score for _, score in scored[:half]])
        metrics["reward_long"] = _mean([score for _, score in scored[-half:]])
    if heldout is not None:
        finishes = [member.trajectory.finish for _, member in members]
        problems = [group.problem for group, _ in members]
        verdicts = verify_all(heldout, list(zip(problems, texts, finishes, strict=True)))
        judged = [verdict.is_correct for verdict in verdicts if verdict.score is not None]
        metrics |= {"heldout_accuracy": _mean(judged)} if judged else {}
    return metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something in a stage's course that a person should look at: a short name, and a sentence."""

    name: str
    sentence: str


def alarms(history: Seq[Mapping[str, float]]) -> list[Alarm]:
    """The alarms that a stage's rounds so far give reason for, from the mean of the last third against the first's.

    history  metrics of each round, oldest first; a rule whose metrics are absent is silent
    """
    if len(history) < LEAST_ROUNDS:
        return []
    size = len(history) // 3
    first, last = _means(history[:size]), _means(history[-size:])

    def rise(name: str) -> float:
        return last[name] - first[name] if name in first and name in last else 0.0

    found = []
    if "heldout_accuracy" in last and rise("reward") > 0.1 and rise("heldout_accuracy") < 0.25 * rise("reward"):
        found.append(
            Alarm(
                name="reward_without_gain",
                sentence=f"The reward rose by {rise('reward'):.2f} while the held-out verifier's accuracy changed by "
                f"{rise('heldout_accuracy'):+.2f}: read completions that the reward pays for and the held-out verifier "
                "refuses.",
            )
        )
    for name, most, least_rise, advice in _LIMITS:
        if last.get(name, 0.0) > most and rise(name) > least_rise:
            text = f"{name} rose from {first[name]:.2f} to {last[name]:.2f}: {advice}"
            found.append(Alarm(name=name, sentence=text))
    if last.get("no_signal_groups", 0.0) > 0.9:
        found.append(
            Alarm(
                name="no_signal",
                sentence=f"{last['no_signal_groups']:.0%} of the groups are all right or all wrong "
                f"({last.get('all_right_groups', 0.0):.0%} right): take harder or easier problems, or sample more.",
            )
        )
    if 0 < last.get("entropy", 1.0) < 0.1 * first.get("entropy", 0.0):
        text = (
            f"Entropy fell from {first['entropy']:.2f} to {last['entropy']:.3f} nats a token: lower the learning rate"
        )
        found.append(Alarm(name="entropy", sentence=f"{text}, or add a KL or an entropy bonus."))
    return found


_LIMITS = (
    ("truncated", 0.3, 0.1, "completions grow into the limit on new tokens; raise it, or penalise length."),
    ("unparsed", 0.3, 0.1, "fewer completions state an answer; read some."),
    ("several_answers", 0.2, 0.1, "completions list candidates; use a verifier that pays for one answer."),
    ("repetition", 0.3, 0.1, "completions repeat themselves; read some, and lower the learning rate."),
)
"""(metric, level, rise, what to look at): an alarm needs both the level and the rise."""


def _answers(text: str) -> set[str]:
    return {next(filter(None, found), "").strip(" .$") for found in ANSWERS.findall(text)}


def _repetition(member: Scored) -> float:
    tokens = member.trajectory.turns[-1].completion.tokens
    grams = [tokens[k : k + 4] for k in range(len(tokens) - 3)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _num_distinct(group: Group) -> int:
    return len({member.verdict.extracted for member in group.members if member.verdict.extracted is not None})


def _all_wrong_by_level(groups: Seq[Group]) -> dict[str, float]:
    by_level: dict[str, list[bool]] = {}
    for group in groups:
        level = group.problem.metadata.get("level")
        if level is not None:
            by_level.setdefault(str(level), []).append(group.num_correct == 0)
    return {f"all_wrong_level_{level}": _mean(values) for level, values in sorted(by_level.items())}


def _mean(values: Seq[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _means(history: Seq[Mapping[str, float]]) -> dict[str, float]:
    """Means over the rounds of the metrics that all of them have."""
    names = set.intersection(*(set(metrics) for metrics in history))
    return {name: _mean([metrics[name] for metrics in history]) for name in names}
