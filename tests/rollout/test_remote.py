"""Response distillation against a real HTTP server that fails in every way a server can, and against a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lydian.data.problems import Problem
from lydian.data.rows import load_conversations
from lydian.data.trajectory import Finish, Sampling
from lydian.errors import DataError, InputError
from lydian.rollout.remote import LocalRespondent, RemoteRespondent, Reply, request_fields
from lydian.rollout.responses import ResponseLog, ask_all, asks_of, choose, write_rows
from lydian.rollout.sample import sample
from lydian.verifiers import make_verifier
from lydian.verifiers.chat_server import ChatServer
from tests.rollout.teacher_server import TeacherServer
from tests.training.toys import Letters, engine, problem

SAMPLING = Sampling(temperature=0.7, top_p=0.9, max_tokens=16, seed=3)
HEADER = {"model": "teacher-1", "problems": "digest"}


@pytest.fixture
def server() -> Iterator[TeacherServer]:
    started = TeacherServer()
    yield started
    started.http.shutdown()
    started.http.server_close()


def respondent(server: TeacherServer, **settings) -> RemoteRespondent:
    chat = ChatServer(url=server.url, model="teacher-1", timeout_seconds=settings.pop("timeout_seconds", 5.0))
    return RemoteRespondent(server=chat, **{"num_tries": 3, "backoff_seconds": 0.01} | settings)


def ask(server: TeacherServer, *questions: str, **settings) -> dict[str, Reply]:
    asks = list(asks_of([problem(question) for question in questions], 1))
    return {reply.problem_id: reply for reply in respondent(server, **settings).replies(asks, SAMPLING)}


def test_a_reply_and_what_it_was_asked_with(server: TeacherServer):
    (reply,) = ask(server, "ok 4").values()
    assert (reply.text, reply.finish, reply.reason) == ("The answer is 4.", Finish.STOP, "")
    assert (reply.num_prompt_tokens, reply.num_completion_tokens) == (7, 5)
    (request,) = server.requests
    assert server.headers[0]["path"] == "/v1/chat/completions"
    assert request == {
        "model": "teacher-1",
        "messages": [{"role": "user", "content": "ok 4"}],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 16,
        "seed": request_fields("ok 4", 0, SAMPLING)["seed"],
    }


def test_each_sample_has_a_seed_of_its_own_and_keeps_it():
    seeds = {(p, k, s): request_fields(p, k, Sampling(seed=s))["seed"] for p in "ab" for k in (0, 1) for s in (0, 1)}
    assert len(set(seeds.values())) == 8 and all(0 <= seed < 2**31 for seed in seeds.values())
    assert request_fields("a", 0, Sampling(seed=1))["seed"] == seeds["a", 0, 1]


def test_what_passes_is_tried_again(server: TeacherServer):
    """A 500 and a time-out, each once."""
    replies = ask(server, "busy then 4", "slow then 5", timeout_seconds=0.3)
    assert {r.text for r in replies.values()} == {"The answer is 4.", "The answer is 5."}
    assert server.asked("busy then 4") == server.asked("slow then 5") == 2


@pytest.mark.parametrize(
    ("question", "num_tries", "reason"),
    [
        ("dead", 3, "HTTP status 500"),
        ("garbage", 3, "not a chat completion"),
        ("refused", 1, "HTTP status 400"),
        ("filtered", 1, "finish_reason is 'content_filter'"),
    ],
)
def test_what_does_not_pass_is_a_failure_with_its_reason(
    server: TeacherServer, question: str, num_tries: int, reason: str
):
    """What cannot pass is not tried again; a filtered text is no reply either, though it came with status 200."""
    (reply,) = ask(server, question).values()
    assert reply.finish is Finish.ABORT and reason in reply.reason
    assert server.asked(question) == num_tries


def test_a_server_that_is_not_there_is_a_failure(server: TeacherServer):
    server.http.shutdown()
    server.http.server_close()
    (reply,) = ask(server, "ok 4", num_tries=1).values()
    assert reply.finish is Finish.ABORT and "no connection" in reply.reason


def test_waits_double(monkeypatch: pytest.MonkeyPatch, server: TeacherServer):
    from lydian.verifiers import chat_server

    waits: list[float] = []
    monkeypatch.setattr(chat_server.ask_until, "__kwdefaults__", {"sleep": waits.append})
    ask(server, "dead", num_tries=4, backoff_seconds=0.5)
    assert waits == [0.5, 1.0, 2.0]


def test_a_cut_reply_says_so(server: TeacherServer):
    (reply,) = ask(server, "cut").values()
    assert reply.finish is Finish.LENGTH and reply.text


# ── The log ─────────────────────────────────────────────────────────────────────────────────────────────────────────

MIXED = ("ok 4", "ok 5", "cut", "empty", "dead", "busy then 6")


def gold(question: str) -> Problem:
    """`ok 5` has another gold answer than the server's."""
    return problem(question, {"ok 4": "4", "busy then 6": "6"}.get(question, "9"))


def test_nothing_is_asked_twice_but_failures(server: TeacherServer, tmp_path: Path):
    """A second run asks again only for what failed; a third sample asks only for itself."""
    path = tmp_path / "log.jsonl"
    problems = [gold(question) for question in MIXED]
    for _ in range(2):
        ask_all(respondent(server), list(asks_of(problems, 1)), SAMPLING, ResponseLog(path, HEADER))
    counts = {question: server.asked(question) for question in MIXED}
    assert counts == {"ok 4": 1, "ok 5": 1, "cut": 1, "empty": 1, "dead": 6, "busy then 6": 2}
    ask_all(respondent(server), list(asks_of(problems[:1], 3)), SAMPLING, ResponseLog(path, HEADER))
    assert server.asked("ok 4") == 3


def test_a_stopped_run_keeps_what_came(server: TeacherServer, tmp_path: Path):
    """Stopped after three replies, with half a line left by the kill: the rest is asked, the three are not."""
    path = tmp_path / "log.jsonl"
    asks = list(asks_of([problem(f"ok {k}") for k in range(8)], 1))

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_all(respondent(server, num_parallel=1), asks, SAMPLING, ResponseLog(path, HEADER), stop)
    num_asked = len(server.requests)
    assert 3 <= num_asked < 8  # what was under way is let go
    with path.open("ab") as file:
        file.write('{"problem_id": "ok 7", "text": "nаïve'.encode()[:-1])
    log = ResponseLog(path, HEADER)
    assert len(log.missing(asks)) == 5
    ask_all(respondent(server), asks, SAMPLING, log)
    assert len(server.requests) == num_asked + 5
    assert ResponseLog(path, HEADER).missing(asks) == []


def test_another_header_or_a_strange_line_is_refused(tmp_path: Path):
    path = tmp_path / "log.jsonl"
    ResponseLog(path, HEADER)
    with pytest.raises(InputError, match=r"model = 'teacher-1'.*model = 'other'"):
        ResponseLog(path, HEADER | {"model": "other"})
    with path.open("a") as file:
        file.write('{"id": 1}\n')
    with pytest.raises(DataError, match=r"log\.jsonl:2"):
        ResponseLog(path, HEADER)


def test_conversations_are_chosen_by_rule_and_counted(server: TeacherServer, tmp_path: Path):
    """Cut, empty and failed replies never become texts; wrong ones stay unless only correct ones are kept. The log
    serves both choices without a question more, and the rows are conversations to train on."""
    problems = [gold(question) for question in MIXED]
    asks, log = list(asks_of(problems, 1)), ResponseLog(tmp_path / "log.jsonl", HEADER)
    ask_all(respondent(server), asks, SAMPLING, log)
    num_asked = len(server.requests)
    facts = {"model": "teacher-1", "sampling": {"temperature": 0.7}}
    everything = choose(asks, log, facts)
    assert [row["id"] for row in everything.rows] == ["ok 4/0", "ok 5/0", "busy then 6/0"]
    assert everything.left_out == {"failed": 1, "cut off": 1, "empty": 1}
    assert everything.failures == {"HTTP status 500": 1} and not everything.outcomes
    correct = choose(asks, log, facts, verifier=make_verifier("numeric"), keep="correct")
    assert [row["id"] for row in correct.rows] == ["ok 4/0", "busy then 6/0"]
    assert correct.left_out == {"failed": 1, "cut off": 1, "empty": 1, "judged wrong": 1}
    assert correct.rows[0]["verdict"]["outcome"] == "correct"
    assert len(server.requests) == num_asked
    path = tmp_path / "out.jsonl"
    write_rows(path, correct.rows)
    (first, _) = load_conversations(path).items
    assert [m.content for m in first.messages] == ["ok 4", "The answer is 4."]
    assert first.metadata["model"] == "teacher-1" and first.metadata["sampling"] == {"temperature": 0.7}


def test_a_checkpoint_answers_as_its_rollouts_do(tmp_path: Path):
    """The same tokens as `sample` draws, also where a resumed run asks for the middle sample only."""
    problems = [problem("f"), problem("g")]
    expected = sample(engine(), Letters(), problems, SAMPLING, num_samples=3)
    texts = {(t.problem_id, t.sample): Letters().decode(t.turns[-1].completion.tokens) for ts in expected for t in ts}
    local = LocalRespondent(name="letters", engine=engine(), template=Letters(), batch_size=4)
    asks = list(asks_of(problems, 3))
    assert {(r.problem_id, r.sample): r.text for r in local.replies(asks, SAMPLING)} == texts
    (middle,) = local.replies(asks[1:2], SAMPLING)
    assert (middle.problem_id, middle.sample, middle.text) == ("f", 1, texts["f", 1])
