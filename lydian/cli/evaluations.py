"""Commands about evaluations: rescore, power, gate, contamination, evidence; benchmarks by name for `lydian eval`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lydian.cli.settings import named_verifier, read_settings
from lydian.errors import InputError
from lydian.report.entries import find_evaluation, load_evaluation, stage_prefixes

if TYPE_CHECKING:
    from lydian.data.problems import Problem
    from lydian.evaluation.benchmarks import BenchmarkRow
    from lydian.evaluation.records import EvalReport

ReportName = Annotated[str, typer.Argument(metavar="RUN_OR_REPORT", help="RUN, RUN:STAGE, or an evaluation's .json.")]


def rescore(
    name: ReportName,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the verifier.")
    ] = None,
    verifier: Annotated[str, typer.Option(help="Which verifier judges now.")] = "math",
    recipe: Annotated[
        str | None, typer.Option(help="For a report saved without its problems: the recipe that it was made with.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write: PREFIX.json and PREFIX.records.jsonl.")] = None,
) -> None:
    """Judge stored completions with another verifier.

    Nothing is generated, and the first verdicts stay as they are. Of a RUN all stages are judged. Prints how verdicts
    changed; writes to rescored/VERIFIER beside the evaluation.
    """
    from lydian.evaluation.records import EvalReport
    from lydian.evaluation.rescore import disagreement
    from lydian.evaluation.rescore import rescore as judge_again
    from lydian.report.tables import format_estimate

    judge = named_verifier(verifier, settings or (), command="lydian rescore")
    prefixes = stage_prefixes(Path(name)) if Path(name).is_dir() else [find_evaluation(name)]
    if out is not None and len(prefixes) > 1:
        _refuse("--out", f"one place for {len(prefixes)} stages", "one evaluation", f"Name a stage as {name}:STAGE.")
    for prefix in prefixes or [find_evaluation(name)]:
        before = EvalReport.load(prefix)
        problems = before.problems or _problems_of(recipe, prefix)
        after = judge_again(before, judge, problems=problems)
        target = out or prefix.parent / "rescored" / judge.fingerprint.replace(":", "-") / prefix.name
        after.save(target, generations=prefix)
        change = disagreement(before, after)
        typer.echo(f"{before.name}: {change.num_changed} of {len(before.records)} verdicts changed")
        for (old, new), num in change.table.items():
            if old != new:
                typer.echo(f"  {old} → {new}: {num}")
        for old_record, new_record in change.changed[:3]:
            typer.echo(f"  {old_record.problem_id}: {old_record.reason!r} → {new_record.reason!r}")
        for label, report in (("before", before), ("after", after)):
            shown = format_estimate(asdict(report.accuracy())) if report.num_failed < len(report.records) else "none"
            typer.echo(f"  {label:<7}{shown}")
        typer.echo(f"written to {target}.json")


def power(
    gain: Annotated[float | None, typer.Option(help="Gain to see, in points: 3 is 3 percentage points.")] = None,
    num_problems: Annotated[int | None, typer.Option("--num-problems", "-n", help="Problems at hand.")] = None,
    discordance: Annotated[float, typer.Option(help="Share of problems that exactly one of the two solves.")] = 0.2,
    power: Annotated[float, typer.Option(help="Chance to see the gain where there is one.")] = 0.8,
    alpha: Annotated[float, typer.Option(help="Chance to see one where there is none, two-sided.")] = 0.05,
) -> None:
    """Say how many problems a comparison needs.

    With --gain, the problems needed to see it; with --num-problems, the smallest gain they can show. Paired, one
    sample a problem.
    """
    from lydian.evaluation.power import problems_needed, visible_gain

    if gain is None and num_problems is None:
        _refuse("lydian power", "neither --gain nor --num-problems", "at least one", "Write --gain 3.")
    terms = f"discordance {discordance:g}, power {power:g}, alpha {alpha:g}"
    if gain is not None:
        num = problems_needed(gain / 100, discordance=discordance, power=power, alpha=alpha)
        typer.echo(f"{num} problems show a gain of {gain:g} points ({terms})")
    if num_problems is not None:
        least = visible_gain(num_problems, discordance=discordance, power=power, alpha=alpha)
        shown = "no gain that is possible" if least is None else f"a gain of {100 * least:.1f} points or more"
        typer.echo(f"{num_problems} problems show {shown} ({terms})")


def gate(
    names: Annotated[list[str], typer.Argument(metavar="REPORT...", help="RUN, RUN:STAGE, or .json; one a benchmark.")],
    rule: Annotated[list[str], typer.Option(help='Such as "gsm8k: drop <= 1pt"; repeatable.')],
    baseline: Annotated[list[str] | None, typer.Option(help="What to compare with; one a benchmark.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Pass or fail a model by rules, for continuous integration.

    drop <= X holds when the paired 95 % interval lies above −X: noise does not pass. What was not measured fails.
    Exit code 1 if a rule fails.
    """
    from lydian.evaluation.gate import judge_rules, parse_rule

    rules = [parse_rule(text) for text in rule]
    reports, baselines = ([load_evaluation(name) for name in group] for group in (names, baseline or ()))
    judgements = judge_rules(rules, reports, baselines)
    passed = bool(judgements) and all(judgement.passed for judgement in judgements)
    if as_json:
        typer.echo(json.dumps({"passed": passed, "rules": [j.as_row() for j in judgements]}, ensure_ascii=False))
    else:
        for judgement in judgements:
            mark = "pass" if judgement.passed else "FAIL"
            typer.echo(f"{mark}  {judgement.rule.text}  [{judgement.benchmark}]  {judgement.reason}")
    if not passed:
        raise typer.Exit(1)


def contamination(
    train: Annotated[list[str], typer.Argument(metavar="TRAIN...", help="Files of training texts, .jsonl streamed.")],
    against: Annotated[
        str, typer.Option(help="Evaluation problems: a file, a benchmark's name, or an evaluation (RUN, RUN:STAGE).")
    ],
    evaluation: Annotated[
        str | None, typer.Option(help="An evaluation of these problems: its score on the clean part.")
    ] = None,
    num_gram: Annotated[int, typer.Option(help="Tokens of an n-gram.")] = 8,
    threshold: Annotated[float, typer.Option(help="Share of a problem's tokens that one text must hold.")] = 0.5,
    out: Annotated[Path | None, typer.Option(help="Also write everything found as JSON here.")] = None,
) -> None:
    """Look for the evaluation in the training data.

    N-grams with numbers kept, templates with numbers masked, exact duplicates; repeats within each side too. Training
    files are streamed.
    """
    from lydian.evaluation.clean_score import clean_scores
    from lydian.evaluation.contamination import ContaminationIndex
    from lydian.evaluation.texts import stream_texts

    problems = _evaluation_problems(against)
    index = ContaminationIndex({p.id: p.question for p in problems}, num_gram=num_gram, threshold=threshold)
    for place, texts in stream_texts(train):
        index.add(place, texts)
    found = index.result()
    num = len(found.overlaps)
    typer.echo(f"{num} problems against {found.num_train} training texts, {num_gram}-grams, threshold {threshold:g}")
    places = {o.problem_id: o.place for o in found.overlaps}
    kinds = (("exact", found.exact), ("contaminated", found.contaminated), ("template twins", found.twins))
    for label, ids in kinds:
        example = f", such as {ids[0]} in {places[ids[0]]}" if ids else ""
        typer.echo(f"{label:<15}{len(ids)} ({len(ids) / num:.1%}){example}")
    typer.echo(f"{'inside train':<15}{found.train_repeats} repeats, {found.train_twins} template twins")
    typer.echo(f"{'inside test':<15}{len(found.eval_repeats)} repeats, {len(found.eval_twins)} template twins")
    row: dict[str, Any] = found.as_row() | {"scores": "not measured"}
    if evaluation is not None:
        scores = clean_scores(load_evaluation(evaluation), found)
        row["scores"] = {part: "not measured" if e is None else asdict(e) for part, e in scores.items()}
        for part, estimate in scores.items():
            typer.echo(f"{part:<15}{_estimate_text(estimate)}")
    if out is not None:
        out.write_text(json.dumps(row, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        typer.echo(f"written to     {out}")


def evidence(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="The file; by default RUN/evidence.json.")] = None,
) -> None:
    """Write what a run claims, and what stands behind it.

    One JSON file: environment, seeds, commands, metrics expected and actual, files with digests, licences, known
    failures. What was not measured says so.
    """
    from lydian.evaluation.evidence import evidence as gather

    found = gather(folder)
    target = out or folder / "evidence.json"
    target.write_text(json.dumps(found, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    typer.echo(str(target))


def evaluate_row(
    model: str, name: str, overrides: list[str], out: Path | None, ks: Sequence[int] = ()
) -> tuple[Path, EvalReport | None]:
    """Evaluates a model with a benchmark by name or TOML file; the place of the result, and the report if there is one.

    overrides  KEY=VALUE each, as `BenchmarkRow` names the keys
    ks         of pass@k and its like, refused before anything is sampled where there are fewer samples a problem
    """
    from rich.console import Console

    from lydian.evaluation.benchmarks import build_benchmark, read_row
    from lydian.evaluation.evaluate import evaluate
    from lydian.evaluation.statistics import require_k
    from lydian.models.load import load_model
    from lydian.recipes.journal import Ticker
    from lydian.rollout.local import LocalEngine
    from lydian.text.template import make_template

    row = read_row(name, read_settings(overrides))
    for k in ks:
        require_k("--k", k, row.num_samples)
    prefix = out or Path("evaluations") / f"{row.name}_{re.sub(r'[^A-Za-z0-9.-]+', '_', model).strip('_')}"
    if prefix.with_name(f"{prefix.name}.json").exists():
        _refuse(f"{prefix}.json", "an evaluation", "a name that is free", "Choose another --out, or remove it.")
    if row.measure == "perplexity":
        return _perplexity(model, row, prefix), None
    loaded = load_model(model)
    kind = row.template
    if kind == "auto":
        kind = "chat" if loaded.tokenizer.chat_template else "plain"
    template = make_template(kind, loaded.tokenizer)
    benchmark = build_benchmark(row, template, _data_root())
    partial = prefix.with_name(f"{prefix.name}.partial.jsonl")
    report = evaluate(
        benchmark,
        LocalEngine.of(model, template),
        name=model,
        weights_digest=loaded.digest,
        progress=Ticker(Console()).counting("evaluated"),
        partial=partial,
    )
    report.save(prefix)
    partial.unlink()
    return prefix, report


def _perplexity(model: str, row: BenchmarkRow, prefix: Path) -> Path:
    from lydian.evaluation.benchmarks import locate
    from lydian.evaluation.perplexity import perplexity
    from lydian.models.load import load_model
    from lydian.models.policy import Policy

    text = "".join(Path(path).read_text(encoding="utf-8") for path in locate(row, _data_root()))
    loaded = load_model(model)
    tokenizer = loaded.tokenizer
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        _refuse(model, "a tokenizer without BOS and EOS", "one of them, to predict the first token from", "Add one.")
    tokens = tokenizer.encode(text, add_special_tokens=False)
    found = perplexity(
        Policy(loaded.model), tokens, start=int(str(start)), num_bytes=len(text.encode()), window=row.window
    )
    result = asdict(found) | {"per_token": found.per_token, "per_byte": found.per_byte}
    result |= {"bits_per_byte": found.bits_per_byte, "model": model, "weights_digest": loaded.digest}
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(f"{prefix.name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    typer.echo(f"per token      {found.per_token:.3f}  ({found.num_tokens} tokens, window {found.window})")
    typer.echo(f"per byte       {found.per_byte:.4f}  ({found.num_bytes} bytes)")
    typer.echo(f"bits per byte  {found.bits_per_byte:.4f}")
    return prefix


def _estimate_text(estimate: Any) -> str:
    from lydian.report.tables import format_estimate

    return "not measured" if estimate is None else f"{format_estimate(asdict(estimate))}  ({estimate.num} problems)"


def _problems_of(recipe: str | None, prefix: Path) -> tuple[Problem, ...]:
    """The problems of the recipe, by default the one of the run that the evaluation lies in."""
    from lydian.models.load import load_model
    from lydian.recipes.load import load_recipe
    from lydian.recipes.materials import build_template, load_set

    source = Path(recipe) if recipe and Path(recipe).exists() else recipe or prefix.parent.parent / "recipe.json"
    if isinstance(source, Path) and not source.is_file():
        _refuse(str(prefix), "a report without its problems", "problems to judge against", "Name its --recipe.")
    resolved = load_recipe(source)
    template = build_template(resolved, load_model(resolved.model.source))
    problems: tuple[Problem, ...] = load_set(resolved, resolved.benchmark.data, template).items
    return problems


def _evaluation_problems(name: str) -> tuple[Problem, ...]:
    from lydian.data.rows import load_problems
    from lydian.evaluation.benchmarks import load_row_problems, read_row, shipped_rows

    if name in shipped_rows() or name.endswith(".toml"):
        return load_row_problems(read_row(name), _data_root())
    is_report = Path(name).is_dir() or ":" in name or name.endswith((".json", ".records.jsonl"))
    if is_report and not _is_data_file(name):
        report = load_evaluation(name)
        if report.problems:
            return report.problems
        _refuse(name, "a report without its problems", "one that has them", "Give the problems' file or a benchmark.")
    return load_problems(name).items


def _is_data_file(name: str) -> bool:
    """A .json file of rows rather than a report's head."""
    path = Path(name)
    return path.suffix == ".json" and path.is_file() and path.read_text(encoding="utf-8").lstrip().startswith("[")


def _data_root() -> Path:
    return Path(os.environ.get("LYDIAN_DATA") or "data")


def _refuse(where: str, given: str, expected: str, fix: str) -> None:
    raise InputError(where=where, given=given, expected=expected, fix=fix)
