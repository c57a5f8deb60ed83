"""A scripted judge on loopback: it answers as it is told, and remembers what it was asked."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# What one request gets: a status and a body, or None for silence until the client gives up.
type Answer = tuple[int, bytes] | None
type Script = Callable[[dict[str, Any]], Answer]


def chat(content: Any) -> Answer:
    """An OpenAI-compatible answer with this text."""
    return 200, json.dumps({"choices": [{"message": {"content": content}}]}).encode()


def rating(content_type: Any = "prose", valid: Any = True, score: Any = 3) -> Answer:
    """A rating as the rubric asks for it."""
    found = {"content_type": content_type, "valid": valid, "score": score}
    return chat(json.dumps(found))


def yes_no(yes: float, no: float, other: float = 0.0) -> Answer:
    """An answer of llama.cpp with these log-probabilities of the next token."""
    tokens = [(" yes", yes), (" no", no), (" maybe", other)]
    top = [{"token": token, "logprob": value} for token, value in tokens if value]
    return 200, json.dumps({"completion_probabilities": [{"top_logprobs": top}]}).encode()


class FakeJudge:
    """What the server does next, and what came in."""

    def __init__(self) -> None:
        self.url = ""
        self.script: Script = lambda _: rating()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.stopping = threading.Event()

    def say(self, *answers: Answer) -> None:
        """Give these answers in turn, the last one for ever."""
        left = list(answers)
        self.script = lambda _: left.pop(0) if len(left) > 1 else left[0]


def _handler(judge: FakeJudge) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            judge.asked.append((self.path, body))
            judge.headers.append(dict(self.headers))
            answer = judge.script(body)
            if answer is None:
                judge.stopping.wait(5)
                return
            status, data = answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def fake_judge() -> Generator[FakeJudge]:
    """A running fake judge."""
    judge = FakeJudge()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(judge))
    server.daemon_threads = True
    judge.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield judge
    finally:
        judge.stopping.set()
        server.shutdown()
        thread.join()
        server.server_close()
