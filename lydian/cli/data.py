"""`lydian pairs`: training data from judged replies, by stated rules and with a report."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lydian.errors import InputError

if TYPE_CHECKING:
    from lydian.data.judged import JudgedReply
    from lydian.data.pairs import BuildReport, Built


Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE...", help="Files of judged replies, rollouts, or an evaluation: RUN:STAGE, .json."),
]
Kind = Annotated[
    Literal["pairs", "feedback", "best"],
    typer.Option("--as", help="Pairs; single replies with a thumb up or down; or the best reply to each prompt."),
]
Rule = Annotated[Literal["best_against_worst", "length_matched"], typer.Option(help="Which replies pair first.")]
MaxSimilarity = Annotated[
    float, typer.Option(help="Drop pairs whose replies agree in this share of their words; above 1 keeps all.")
]
Threshold = Annotated[float | None, typer.Option(help="Feedback, best: the score from which a reply is wanted.")]
Columns = Annotated[list[str] | None, typer.Option(help="Another column name: completion=solution; repeatable.")]
Spread = Annotated[list[str] | None, typer.Option(help="A column that holds one reply, or a list; repeatable.")]
Labels = Annotated[list[str] | None, typer.Option(help="What a word of the labels means: up=true; repeatable.")]
Rewrite = Annotated[
    list[str] | None,
    typer.Option(help="Change the replies first, wherever it fits: s/PATTERN/REPLACEMENT/; repeatable."),
]


def pairs(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="The .jsonl file to write.")],
    kind: Kind = "pairs",
    rule: Rule = "best_against_worst",
    margin: Annotated[float, typer.Option(help="Least difference in score of a pair.")] = 0.0,
    max_pairs: Annotated[int, typer.Option(help="Most pairs of one prompt.")] = 1,
    max_similarity: MaxSimilarity = 0.95,
    threshold: Threshold = None,
    column: Columns = None,
    spread: Spread = None,
    label: Labels = None,
    rewrite: Rewrite = None,
    on_bad_row: Annotated[Literal["stop", "skip"], typer.Option(help="At a malformed row.")] = "stop",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Build preference pairs, feedback or best replies from judged ones.

    Replies to one prompt by one judge are compared. Says what was left out and why, and whether the chosen replies are
    systematically longer. Exit code 1 if nothing came of it.
    """
    from lydian.data.atomic import write_atomically
    from lydian.data.pair_rules import PairRules
    from lydian.data.pairs import build_best, build_feedback, build_pairs
    from lydian.data.rows import to_row

    replies, skipped = _read(
        sources, columns=_mapping("--column", column), labels=_labels(label), spread=spread or (), on_bad_row=on_bad_row
    )
    changes = [_substitution(text) for text in rewrite or ()]
    replies = [_rewritten(reply, changes) for reply in replies]
    built: Built[Any]
    if kind == "pairs":
        rules = PairRules(rule=rule, margin=margin, most=max_pairs)
        built = build_pairs(replies, rules, max_similarity=max_similarity)
    else:
        built = (build_feedback if kind == "feedback" else build_best)(replies, threshold=threshold)
    lines = [json.dumps(to_row(item), ensure_ascii=False) + "\n" for item in built.items]
    write_atomically(out, "".join(lines))
    if as_json:
        row = built.report.as_row() | {"kind": kind, "out": str(out), "skipped": [list(entry) for entry in skipped]}
        typer.echo(json.dumps(row, ensure_ascii=False, indent=2))
    else:
        _print_report(built.report, kind, skipped)
        typer.echo(f"written to     {out}")
    if not built.items:
        raise typer.Exit(1)


def _print_report(report: BuildReport, kind: str, skipped: Sequence[tuple[str, str]]) -> None:
    for line in report_lines(report, kind):
        typer.echo(line)
    for place, reason in skipped:
        typer.echo(f"skipped        {place}: {reason}")


def report_lines(report: BuildReport, kind: str) -> list[str]:
    """The report for people to read."""
    names = {"pairs": "pairs", "feedback": "pieces of feedback", "best": "best replies"}
    rows = [
        ("read", f"{report.num_replies} judged replies to {report.num_groups} prompts"),
        ("built", f"{report.num_items} {names[kind]}" + _balance(report)),
        ("left out", f"replies: {_counts(report.left_out)}"),
        ("dropped", f"prompts: {_counts(report.dropped)}"),
        ("judges", ", ".join(f"{judge or 'not stated'} ({num} prompts)" for judge, num in report.judges.items())),
    ]
    if report.disagreement is not None:
        shown = f"{report.disagreement:.1%} of the pairs of labels of one reply, over {report.num_several} replies"
        rows.append(("disagreement", shown))
    if kind == "pairs":
        rows.append(("near-identical", f"{report.num_near_identical} pairs dropped"))
    if report.length is not None:
        length = report.length
        num = length.num_longer + length.num_shorter + length.num_equal
        rows.append(
            (
                "length",
                f"chosen minus rejected {length.mean:+.1f} {length.unit} on average; the chosen longer in "
                f"{length.num_longer}, shorter in {length.num_shorter}, equal in {length.num_equal} of {num} "
                f"(sign test p = {length.p_value:.2g})",
            )
        )
        if length.is_biased:
            rows.append(("WARNING", "chosen replies are systematically longer: training may learn length alone"))
    return [f"{label:<15}{text}" for label, text in rows]


def _balance(report: BuildReport) -> str:
    if report.num_desirable is None:
        return ""
    return f": {report.num_desirable} desirable, {report.num_items - report.num_desirable} undesirable"


def _counts(counts: Any) -> str:
    return ", ".join(f"{num} {reason.replace('_', ' ')}" for reason, num in counts.items()) or "none"


def _read(sources: Sequence[str], **settings: Any) -> tuple[list[JudgedReply], list[tuple[str, str]]]:
    """The replies of all sources, and what was skipped: files of rows together, each evaluation by itself."""
    from lydian.data.rows import load_judged

    files = [name for name in sources if Path(name).is_file() and not _is_evaluation(Path(name))]
    replies: list[JudgedReply] = []
    skipped: list[tuple[str, str]] = []
    if files:
        loaded = load_judged(files, **settings)
        replies += loaded.items
        skipped += loaded.skipped
    for name in sources:
        if name not in files:
            replies += _evaluated(name)
    return replies, skipped


def _is_evaluation(path: Path) -> bool:
    prefix = path.name.removesuffix(".records.jsonl").removesuffix(".json")
    return path.name.endswith(".records.jsonl") or path.with_name(f"{prefix}.records.jsonl").is_file()


def _evaluated(name: str) -> list[JudgedReply]:
    """The records of an evaluation. They are a benchmark's: what is trained on them can no longer be judged by it."""
    from lydian.data.judged import JudgedReply
    from lydian.data.problems import Message
    from lydian.data.trajectory import Finish
    from lydian.report.entries import load_evaluation

    report = load_evaluation(name)
    typer.echo(
        f"{name}: answers to the benchmark {report.benchmark}; what is trained on them it can no longer judge", err=True
    )
    prompts = {problem.id: problem.messages for problem in report.problems}
    replies = []
    for record in report.records:
        asked = (Message(role="user", content=record.question),) if record.question else ()
        replies.append(
            JudgedReply(
                id=f"{name}:{record.problem_id}/{record.sample}",
                messages=prompts.get(record.problem_id, asked),
                reply=record.text,
                score=record.score,
                labels=(record.is_correct,) if record.is_judged else (),
                judge=report.spec.verifier,
                is_whole=record.finish is Finish.STOP,
                num_tokens=record.num_tokens,
                source=report.benchmark,
                metadata={"problem": record.problem_id, **record.metadata},
            )
        )
    return replies


def _mapping(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise InputError(
                where=option, given=repr(text), expected="NAME=VALUE", fix=f"Write {option} completion=solution."
            )
        found[key] = value
    return found


def _substitution(text: str) -> tuple[re.Pattern[str], str]:
    r"""The pattern and the replacement of s/PATTERN/REPLACEMENT/; another sign may stand in the place of the /.

    >>> pattern, replacement = _substitution(r"s|<<[^>]*>>||")
    >>> pattern.sub(replacement, "2 + 3 = <<2+3=5>>5")
    '2 + 3 = 5'
    """
    parts = text[1:].split(text[1]) if len(text) > 1 and not text[1].isalnum() else []
    try:
        if text[0:1] != "s" or len(parts) != 4 or parts[0] or parts[3] or not parts[1]:
            raise re.error("not of the form s/PATTERN/REPLACEMENT/")
        pattern = re.compile(parts[1])
        pattern.sub(parts[2], "")  # a reference to a group that is not there shows only here
        return pattern, parts[2]
    except (re.error, IndexError) as error:
        raise InputError(
            where="--rewrite",
            given=f"{text!r}: {error}",
            expected="s/PATTERN/REPLACEMENT/, the pattern a regular expression of Python",
            fix="Write --rewrite 's/^A: /#### /', or with another sign in place of each /.",
        ) from error


def _rewritten(reply: JudgedReply, rules: Sequence[tuple[re.Pattern[str], str]]) -> JudgedReply:
    text = reply.reply
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return reply if text == reply.reply else replace(reply, reply=text, num_tokens=None)  # it was another text's length


def _labels(texts: Sequence[str] | None) -> dict[str, bool]:
    words = _mapping("--label", texts)
    wrong = {word: meaning for word, meaning in words.items() if meaning not in ("true", "false")}
    if wrong:
        raise InputError(where="--label", given=str(wrong), expected="true or false", fix="Write --label up=true.")
    return {word: meaning == "true" for word, meaning in words.items()}
