"""`lydian respond`: a model's replies to problems, as conversations to imitate."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lydian.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lydian.data.problems import Problem
    from lydian.rollout.engine import Progress
    from lydian.rollout.remote import Respondent
    from lydian.rollout.responses import Chosen
    from lydian.verifiers.verifier import Verifier

SETTINGS = "Settings of the verifier."


def respond(
    problems: Annotated[str, typer.Argument(metavar="PROBLEMS", help="A file of problems, or a hub id.")],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help=SETTINGS)] = None,
    model: Annotated[str, typer.Option(help="Folder, hub id or name; with --url its name on the server.")] = "tiny",
    out: Annotated[Path, typer.Option(help="Conversations; replies go to OUT.replies.jsonl.")] = Path("replies.jsonl"),
    url: Annotated[str, typer.Option(help="An OpenAI-compatible server, as far as /v1.")] = "",
    key_variable: Annotated[str, typer.Option(help="Environment variable that holds the server's key.")] = "",
    template: Annotated[
        Literal["chat", "plain"], typer.Option(help="Of a model without --url: its chat template, or --prompt.")
    ] = "chat",
    prompt: Annotated[str, typer.Option(help="Of the plain template, with {question} in it.")] = "{question}",
    system: Annotated[str, typer.Option(help="System message for the model; not written into the conversations.")] = "",
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", min=1, help="Replies a problem.")] = 1,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Smallest set of tokens with this probability; 1 keeps all.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="Limit on a reply; one that reaches it is left out.")] = 1024,
    seed: Annotated[int, typer.Option(help="With the problem and sample it fixes each reply's own seed.")] = 0,
    verifier: Annotated[str | None, typer.Option(help="Which verifier judges the replies.")] = None,
    keep: Annotated[Literal["all", "correct"], typer.Option(help="Which replies become conversations.")] = "all",
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only the first problems.")] = None,
    num_parallel: Annotated[int, typer.Option(min=1, help="Requests to the server at once.")] = 8,
    num_tries: Annotated[int, typer.Option(min=1, help="Tries for each reply; the wait between them doubles.")] = 4,
    backoff_seconds: Annotated[float, typer.Option(min=0, help="The first wait.")] = 1.0,
    timeout_seconds: Annotated[float, typer.Option(help="Limit on waiting for the server, for each try.")] = 120.0,
) -> None:
    """Write a model's replies to problems, to train on.

    Asks a checkpoint, or a server with --url. What has been answered is not asked again: the same command goes on, and
    with another --verifier or --keep it chooses anew. Cut-off and empty replies are left out. Exit code 1 if replies
    are still missing.
    """
    from lydian.data.rows import load_problems
    from lydian.data.trajectory import Sampling
    from lydian.rollout.responses import ResponseLog, ask_all, asks_of, choose, write_rows

    loaded = load_problems(problems)
    kept = loaded.items[:limit]
    judge = _judge(verifier, list(settings or ()), kept, keep)
    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    facts: dict[str, Any] = {"model": model, "sampling": asdict(sampling)}
    if url:
        tries = {"num_tries": num_tries, "backoff_seconds": backoff_seconds, "num_parallel": num_parallel}
        respondent = _remote(tries, url=url, model=model, key_variable=key_variable, timeout_seconds=timeout_seconds)
    else:
        respondent, facts["digest"] = _local(model, template, prompt)
    header = facts | {"system": system, "problems": loaded.digest}
    log = ResponseLog(out.with_name(f"{out.name}.replies.jsonl"), header)
    asks = list(asks_of(_asked(kept, system), num_samples))
    ask_all(respondent, asks, sampling, log, _counting("answered"))
    written = list(asks_of(kept, num_samples))  # the system message is the model's alone
    chosen = choose(written, log, facts, verifier=judge, keep=keep, progress=_counting("judged"))
    write_rows(out, chosen.rows)
    _report(chosen, len(asks), out)
    if chosen.failures or not chosen.rows:
        raise typer.Exit(1)


def _judge(name: str | None, settings: list[str], problems: Sequence[Problem], keep: str) -> Verifier | None:
    """The verifier, once it is known that it can read the problems' answers."""
    from lydian.cli.settings import named_verifier

    if name is None:
        if keep == "correct":
            _refuse("--keep correct", "no --verifier", "one that says what is correct", "Write --verifier math.")
        return None
    judge = named_verifier(name, settings, command="lydian respond")
    for problem in problems:
        judge.check(problem)
    return judge


def _remote(tries: dict[str, Any], **server: Any) -> Respondent:
    """The server to ask."""
    from lydian.rollout.remote import RemoteRespondent
    from lydian.verifiers.chat_server import ChatServer

    return RemoteRespondent(server=ChatServer(**server), **tries)


def _counting(label: str) -> Progress:
    """Says now and then how many are done."""
    from rich.console import Console

    from lydian.recipes.journal import Ticker

    return Ticker(Console(stderr=True)).counting(label)


def _local(model: str, template: str, prompt: str) -> tuple[Respondent, str]:
    """The checkpoint to ask, and the digest of its weights."""
    import torch

    from lydian.models.load import load_model
    from lydian.rollout.local import LocalEngine
    from lydian.rollout.remote import LocalRespondent
    from lydian.text.template import make_template

    loaded = load_model(model)
    made = make_template(template, loaded.tokenizer, **({"prompt": prompt} if template == "plain" else {}))
    loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
    engine = LocalEngine(loaded.model, stop_tokens=made.stop_tokens | loaded.stop_tokens, decode=made.decode)
    return LocalRespondent(name=model, engine=engine, template=made), f"{loaded.digest} {made.fingerprint}"


def _asked(problems: Sequence[Problem], system: str) -> Sequence[Problem]:
    """The problems as the model sees them."""
    from lydian.data.problems import Message

    if not system:
        return problems
    if any(problem.messages[0].role == "system" for problem in problems):
        _refuse("--system", "problems with a system message of their own", "one of the two", "Leave --system out.")
    first = Message(role="system", content=system)
    return [replace(problem, messages=(first, *problem.messages)) for problem in problems]


def _report(chosen: Chosen, num_asked: int, out: Path) -> None:
    typer.echo(f"{num_asked} replies asked for, {len(chosen.rows)} conversations written to {out}")
    for label, counts in (("left out", chosen.left_out), ("verdicts", chosen.outcomes), ("failures", chosen.failures)):
        if counts:
            shown = ", ".join(f"{reason} {num}" for reason, num in counts.most_common())
            typer.echo(f"{label:<10}{shown}")
    if chosen.failures:
        typer.echo("the same command asks again for what failed")


def _refuse(where: str, given: str, expected: str, fix: str) -> None:
    raise InputError(where=where, given=given, expected=expected, fix=fix)
