"""A chat server on this machine that answers by what it is asked, and fails in every way a server can."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class TeacherServer:
    """Answers by what it is asked. It keeps every request.

    ok N           "The answer is N."        busy then N    500 on the first request, then as ok
    dead           500 always                slow then N    sleeps through the first request, then as ok
    garbage        not JSON, always          refused        400 always
    cut            finish_reason length      filtered       finish_reason content_filter
    empty          a reply of spaces
    """

    def __init__(self) -> None:
        self.requests: list[dict] = []
        self.headers: list[dict[str, str]] = []
        outer, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.requests.append(body)
                    outer.headers.append({"path": self.path, "key": self.headers.get("Authorization", "")})
                    is_first = outer.asked(body["messages"][-1]["content"]) == 1
                outer.answer(self, body["messages"][-1]["content"], is_first)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def asked(self, question: str) -> int:
        return Counter(request["messages"][-1]["content"] for request in self.requests)[question]

    def answer(self, handler: BaseHTTPRequestHandler, question: str, is_first: bool) -> None:
        kind, _, rest = question.partition(" ")
        status = {"dead": 500, "refused": 400}.get(kind, 500 if kind == "busy" and is_first else 200)
        if kind == "slow" and is_first:
            time.sleep(0.6)
        finish = {"cut": "length", "filtered": "content_filter"}.get(kind, "stop")
        text = " " if kind == "empty" else f"The answer is {rest.removeprefix('then ') or kind}."
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish}
        usage = {"prompt_tokens": 7, "completion_tokens": 5}
        body = b"<html>" if kind == "garbage" else json.dumps({"choices": [choice], "usage": usage}).encode()
        try:
            handler.send_response(status)
            handler.end_headers()
            handler.wfile.write(body)
        except OSError:  # the client has hung up
            pass
