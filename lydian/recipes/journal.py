"""What a running stage tells the run directory and the person who waits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from rich.console import Console

from lydian.data.forest import sequences_of
from lydian.data.problems import Message
from lydian.data.sequence import Sequence
from lydian.recipes.run_dir import RunDir
from lydian.rollout.engine import Progress
from lydian.text.template import Template
from lydian.training.collect import Collected
from lydian.training.loop import Position
from lydian.training.monitors import alarms

SHOWN = ("loss", "reward", "accuracy", "agreement", "mean_tokens", "no_signal_groups", "margin", "entropy")
"""Metrics on the progress line, in this order, where a stage has them."""


@dataclass(slots=True)
class Ticker:
    """Prints a line of progress at most every `every_seconds`, so that logs stay readable and waits are not silent."""

    console: Console
    every_seconds: float = 5.0
    _last: float = field(default_factory=time.monotonic)

    def say(self, text: str, *, is_last: bool = False) -> None:
        """Prints the line if it is time, or the last one of its kind."""
        if is_last or time.monotonic() - self._last >= self.every_seconds:
            self._last = time.monotonic()
            self.console.print(text, highlight=False, markup=False)

    def counting(self, label: str) -> Progress:
        """A progress function that says how many of how many are done."""
        return lambda done, total: self.say(f"  {label}  {done}/{total}")


@dataclass(slots=True)
class RunJournal:
    """The journal of one stage of a run; see `lydian.training.loop.Journal`.

    save  called with a position that the stage can go on from bitwise
    """

    run: RunDir
    stage: str
    template: Template
    ticker: Ticker
    save: Callable[[Position], None]
    _rounds: dict[int, dict[str, float]] = field(default_factory=dict)
    _alarms: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for row in self.run.read_metrics(self.stage):  # a resumed stage remembers its rounds, and has said its alarms
            self._rounds[row["round"]] = row["metrics"]
        self._alarms.update(alarm.name for alarm in alarms(self._history()))

    def collected(self, round: int, collected: Collected) -> None:
        """Stores the round's samples with their verdicts and advantages, and counts for each problem."""
        self.run.write_rollouts(stage=self.stage, round=round, rows=_rows(collected, self.template))
        counts = self.run.rollouts_path(self.stage, round).with_suffix(".counts.json")
        self.run.write_json(str(counts.relative_to(self.run.path)), _counts(collected))

    def stepped(self, position: Position, num_steps: int, seconds: float, metrics: dict[str, float]) -> None:
        """Stores the step's metrics and shows the ones that people watch."""
        self.run.append_metrics(
            stage=self.stage, round=position.round, step=position.step, seconds=seconds, metrics=dict(metrics)
        )
        self._rounds[position.round] = dict(metrics)
        self._raise_alarms()
        shown = "  ".join(f"{name} {metrics[name]:.3g}" for name in SHOWN if name in metrics)
        self.ticker.say(
            f"  {self.stage}  step {position.step}/{num_steps}  {shown}", is_last=position.step == num_steps
        )

    def _history(self) -> list[dict[str, float]]:
        return [self._rounds[round] for round in sorted(self._rounds)]

    def _raise_alarms(self) -> None:
        """Says what a person should look at, each thing once a stage."""
        for alarm in alarms(self._history()):
            if alarm.name not in self._alarms:
                self._alarms.add(alarm.name)
                self.event("alarm", alarm.sentence)

    def checkpoint(self, position: Position) -> None:
        """Saves the run's state."""
        self.save(position)

    def event(self, kind: str, message: str) -> None:
        """Stores the event and shows it."""
        self.run.append_event(stage=self.stage, kind=kind, message=message)
        self.ticker.say(f"  {self.stage}  {message}", is_last=True)

    def sampling(self, round: int) -> Progress:
        """Shows sampling that takes long."""
        return self.ticker.counting(f"{self.stage}  round {round}: sampled")


def _counts(collected: Collected) -> dict[str, dict[str, int]]:
    """For each problem of the round: how many completions were sampled, were correct, and are trained on."""
    kept = Counter(sequence.group for sequence in sequences_of(collected.items))
    return {
        group.problem.id: {
            "sampled": len(group.members),
            "correct": group.num_correct,
            "kept": kept[group.problem.id],
        }
        for group in collected.groups
    }


def _rows(collected: Collected, template: Template) -> list[dict[str, object]]:
    """One row a sample: what it was, how it was judged, and what training made of it."""
    sequences = sequences_of(collected.items)
    trained, roles = {s.id: s for s in sequences}, _roles(sequences)
    rows: list[dict[str, object]] = []
    for group in collected.groups:
        for member in group.members:
            trajectory, verdict = member.trajectory, member.verdict
            completion = trajectory.turns[-1].completion
            sequence = trained.get(f"{trajectory.problem_id}/{trajectory.sample}")
            advantage = None if sequence is None else sequence.streams.get("advantage", (None,))[-1]
            rows.append(
                {
                    "problem_id": trajectory.problem_id,
                    "sample": trajectory.sample,
                    "prompt": group.problem.question,
                    "text": template.decode(completion.tokens),
                    "ids": completion.tokens,
                    "pieces": template.pieces(completion.tokens),
                    "logprobs": [round(x, 4) for x in completion.logprobs],
                    "advantage": advantage,
                    "is_trained": sequence is not None,
                    "score": verdict.score,
                    "outcome": verdict.outcome.value,
                    "extracted": verdict.extracted,
                    "parts": dict(verdict.parts),
                    "reason": verdict.reason,
                    "verifier": verdict.verifier,
                    "finish": completion.finish.value,
                    "version": completion.versions[0][1] if completion.versions else None,
                    **({} if sequence is None or sequence.id not in roles else {"trained_as": roles[sequence.id]}),
                    **_more_than_the_question(group.problem.messages),
                }
            )
    return rows


def _roles(sequences: Seq[Sequence]) -> dict[str, str]:
    """As what preferences take each sequence, by id; one that stands in several pairs may be both."""
    roles: dict[str, set[str]] = {}
    for sequence in sequences:
        for fact, (yes, no) in (("is_chosen", ("chosen", "rejected")), ("is_desirable", ("desirable", "undesirable"))):
            if fact in sequence.facts:
                roles.setdefault(sequence.id, set()).add(yes if sequence.facts[fact] else no)
                break
    return {name: ", ".join(sorted(found)) for name, found in roles.items()}


def _more_than_the_question(messages: Seq[Message]) -> dict[str, object]:
    """The whole prompt, where the question alone would lose something of it."""
    whole = [{"role": message.role, "content": message.content} for message in messages]
    return {} if [message["role"] for message in whole] == ["user"] else {"messages": whole}
