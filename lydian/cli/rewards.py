"""Commands about models that judge: reward (how good one is), best-of (choosing by one), over-optimisation (by one)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from lydian.errors import InputError
from lydian.report.entries import load_evaluation

Ks = Annotated[list[int] | None, typer.Option("--k", help="How many samples to choose from; repeatable.")]


def reward(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a reward model or classifier.")],
    data: Annotated[str, typer.Option(help="File with preferences, labelled steps, or texts with a class.")],
    out: Annotated[Path | None, typer.Option(help="Also write the report as JSON here.")] = None,
    skip: Annotated[bool, typer.Option("--skip", help="Leave out malformed rows, and count them.")] = False,
) -> None:
    """Measure a reward model, process reward model or classifier.

    On held-out data: accuracy with its interval, calibration, and for pairs how the score goes with length.
    """
    from lydian.data.rows import load_labelled, load_preferences, load_stepwise
    from lydian.evaluation.reward_models import evaluate_judging, save_report
    from lydian.models.reward_model import RewardModel
    from lydian.text.template import make_template

    loaded_model = RewardModel.load(model)
    facts = loaded_model.facts
    load: Callable[..., Any] = load_preferences
    if "classes" in facts or "steps" in facts:
        load = load_labelled if "classes" in facts else load_stepwise
    rows = load(data, on_bad_row="skip" if skip else "stop")
    if "template" not in facts:
        fix = "Train it by a run, or evaluate it in code with its template."
        _refuse(model, "a head that does not say what template it was trained with", "one that does", fix)
    template = make_template(facts["template"]["kind"], loaded_model.tokenizer, **facts["template"]["settings"])
    report = evaluate_judging(loaded_model.policy, rows.items, template)
    for line in judging_lines(report.as_row()):
        typer.echo(line)
    for place, reason in rows.skipped:
        typer.echo(f"skipped {place}: {reason}")
    if out is not None:
        save_report(report, out)
        typer.echo(f"written to {out}")


def best_of(
    name: Annotated[str, typer.Argument(metavar="REPORT", help="RUN, RUN:STAGE, or an evaluation's .json.")],
    model: Annotated[str, typer.Option(help="Folder of a reward model or process reward model.")],
    ks: Ks = None,
) -> None:
    """Choose the best of several samples by a reward model.

    For an evaluation with several samples a problem: rm@k beside mean@n, pass@k and maj@k, with intervals over
    problems. A process reward model is shown with each aggregation.
    """
    from dataclasses import asdict

    from lydian.evaluation.at_k import at_k, default_ks
    from lydian.evaluation.reward_models import score_samples
    from lydian.report.tables import format_estimate
    from lydian.verifiers.reward_model import Aggregation, RewardModel

    report = load_evaluation(name)
    first = RewardModel(model=model)
    ways: tuple[Aggregation, ...] = get_args(Aggregation) if "steps" in first.scorer.facts else ("min",)
    ks = ks or list(default_ks(report.spec.num_samples)) or [2]
    verifiers = {how: RewardModel(scorer=first.scorer, aggregation=how) for how in ways}
    scores = {f"rm@k {how}" if len(ways) > 1 else "rm@k": score_samples(report, verifiers[how]) for how in ways}
    typer.echo(f"mean@{report.spec.num_samples:<3} {format_estimate(asdict(report.accuracy()))}")
    for k in ks:
        row: dict[str, Any] = {}
        for label, found in scores.items():
            table = at_k(report, [k], found)[k]
            row |= {**table, label: table.pop("rm@k")}
        shown = (f"{label} {'not measured' if e is None else format_estimate(asdict(e))}" for label, e in row.items())
        typer.echo(f"k = {k}: " + ", ".join(shown))


def over_optimisation(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="A stage that samples and is rewarded.")],
    svg: Annotated[Path | None, typer.Option(help="Also draw it into this SVG file.")] = None,
) -> None:
    """Show proxy reward, gold accuracy and KL of each round.

    Whether the reward rose while the held-out verifier's accuracy fell: over-optimisation.
    """
    from lydian.evaluation.over_optimisation import course_lines, course_of
    from lydian.report.over_optimisation import over_optimisation_svg
    from lydian.report.record import Reader

    found = course_of(stage, Reader(root=folder).read_lines("metrics.jsonl"))
    for line in course_lines(found):
        typer.echo(line)
    if svg is not None:
        svg.write_text(over_optimisation_svg(found), encoding="utf-8")
        typer.echo(f"written to {svg}")


def judging_lines(row: Mapping[str, Any]) -> list[str]:
    """A report of `lydian.evaluation.reward_models` in lines of text."""
    from lydian.report.tables import format_estimate

    lines = [f"{'accuracy':<20}{format_estimate(row['accuracy'])}  ({row['accuracy']['num']})"]
    if row["kind"] == "reward_model":
        lines.append(f"{'mean margin':<20}{row['mean_margin']:.4g}, {row['num_ties']} ties")
        correlation = row["length_correlation"]
        shown = "none: scores or lengths never vary" if correlation is None else f"{correlation:+.3f} (Spearman)"
        lines.append(f"{'score and length':<20}{shown}")
        for name, estimate in row["by_length"].items():
            label = name.replace("_", " ") + (" length" if name == "alike" else "")
            found = "no pair" if estimate is None else f"{format_estimate(estimate)}  ({estimate['num']})"
            lines.append(f"  {label:<18}{found}")
        lines.append(f"{'scores':<20}mean {row['mean']:.4g}, deviation {row['deviation']:.4g}")
    if row["kind"] == "process_reward_model":
        lines.append(f"{'steps that are right':<20}{row['share_right']:.1%}")
    lines.append(f"{'calibration error':<20}{row['calibration_error']:.3f}")
    for found in row["calibration"]:
        bounds = f"{found['low']:.1f}–{found['high']:.1f}"
        predicted, observed = f"predicted {found['predicted']:.1%}", f"observed {found['observed']:.1%}"
        lines.append(f"  {bounds:<18}{predicted}, {observed}  ({found['num']})")
    for name, counts in row.get("confusion", {}).items():
        lines.append(f"  {name:<18}" + ", ".join(f"{other} {num}" for other, num in counts.items() if num))
    return lines


def _refuse(where: str, given: str, expected: str, fix: str) -> None:
    raise InputError(where=where, given=given, expected=expected, fix=fix)
