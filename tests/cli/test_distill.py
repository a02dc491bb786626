"""lydian respond: replies of a server and of the bundled model, as conversations that can be trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lydian.cli.main import app
from lydian.data.rows import load_conversations
from tests.rollout.teacher_server import TeacherServer


@pytest.fixture
def server() -> Iterator[TeacherServer]:
    started = TeacherServer()
    yield started
    started.http.shutdown()
    started.http.server_close()


def respond(problems: Path, *arguments: object) -> Result:
    out = problems.with_name("out.jsonl")
    return CliRunner().invoke(app, ["respond", str(problems), *map(str, arguments), "--out", str(out)])


def file_of(folder: Path, *rows: tuple[str, str]) -> Path:
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows))
    return path


def of_server(server: TeacherServer, *more: object) -> tuple[object, ...]:
    return ("--url", server.url, "--model", "m", "--num-tries", 2, "--backoff-seconds", 0, *more)


def test_a_servers_replies_become_conversations(server: TeacherServer, tmp_path: Path) -> None:
    """Of five, one is wrong, one cut, one missing: exit code 1, and the same command asks again for that one alone."""
    problems = file_of(tmp_path, ("ok 4", "4"), ("ok 5", "9"), ("busy then 6", "6"), ("cut", "1"), ("dead", "1"))
    options = of_server(server, "--verifier", "numeric", "--keep", "correct", "--system", "Be brief.")
    result = respond(problems, *options)
    assert result.exit_code == 1
    assert "5 replies asked for, 2 conversations" in result.stdout
    assert "HTTP status 500 1" in result.stdout and "cut off 1" in result.stdout
    rows = load_conversations(tmp_path / "out.jsonl").items
    assert [[m.content for m in row.messages] for row in rows] == [
        ["ok 4", "The answer is 4."],
        ["busy then 6", "The answer is 6."],
    ]
    assert {row.metadata["model"] for row in rows} == {"m"}
    assert server.requests[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    num_asked = len(server.requests)
    assert respond(problems, *options).exit_code == 1
    assert {r["messages"][-1]["content"] for r in server.requests[num_asked:]} == {"dead"}
    everything = respond(problems, *of_server(server, "--system", "Be brief.", "--limit", 4))
    assert everything.exit_code == 0 and "4 replies asked for, 3 conversations" in everything.stdout


def test_other_settings_do_not_mix_with_old_replies(server: TeacherServer, tmp_path: Path) -> None:
    problems = file_of(tmp_path, ("ok 4", "4"))
    assert respond(problems, *of_server(server)).exit_code == 0
    warmer = respond(problems, *of_server(server, "--temperature", 0.5))
    assert warmer.exit_code == 2 and "sampling" in warmer.stderr


def test_the_bundled_model_answers(tmp_path: Path) -> None:
    """Twice the same command: the second time everything is there already, and the file is the same."""
    problems = file_of(tmp_path, ("2 + 3", "5"), ("4 + 4", "8"))
    options = ("--model", "tiny", "--template", "plain", "--prompt", "{question}\nSteps:", "--max-tokens", 64, "-n", 2)
    first = respond(problems, *options)
    written = (tmp_path / "out.jsonl").read_text()
    assert first.exit_code == 0 and written
    assert respond(problems, *options).exit_code == 0
    assert (tmp_path / "out.jsonl").read_text() == written


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--keep", "correct"), "no --verifier"), (("--verifier", "numeric"), "gold answer 'five'")],
)
def test_what_cannot_be_judged_is_said_before_anything_is_asked(
    server: TeacherServer, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    result = respond(file_of(tmp_path, ("ok 5", "five")), *of_server(server, *options))
    assert result.exit_code != 0 and said in result.stderr
    assert not server.requests
