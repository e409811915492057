"""A real HTTP server that speaks the chat completion protocol and misbehaves on request."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from magi2.prompts import EndpointSettings

CASES = Path(__file__).parents[1] / "golden/prompt_enhancement"


@dataclass
class Answer:
    """One scripted HTTP response."""

    text: str | None = None
    status: int = 200
    finish_reason: str = "stop"
    refusal: str | None = None
    choices: bool = True
    raw_body: bytes | None = None
    delay_s: float = 0.0
    retry_after: str | None = None


@dataclass
class ChatServer:
    """Scripted answers in order, the last one repeated; requests and headers as they came."""

    answers: list[Answer] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    asked_at: list[float] = field(default_factory=list)
    base_url: str = ""

    def script(self, *answers: Answer) -> None:
        self.answers = list(answers)

    def settings(self, **changes: Any) -> EndpointSettings:
        values = {"base_url": self.base_url, "model": "tester", "api_key": "sk-secret-key", "timeout_s": 20.0}
        return EndpointSettings(**{**values, "max_retries": 0, **changes})


def _body(answer: Answer) -> bytes:
    if answer.raw_body is not None:
        return answer.raw_body
    if answer.status != 200:
        return json.dumps({"error": {"message": "sk-secret-key LEAK the whole prompt"}}).encode()
    message = {"role": "assistant", "content": answer.text, "refusal": answer.refusal}
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    completion = {"id": "x", "object": "chat.completion", "created": 0, "model": "tester-1.2", "usage": usage}
    return json.dumps({**completion, "choices": [choice] if answer.choices else []}).encode()


@contextmanager
def serve() -> Iterator[ChatServer]:
    """A server on a free loopback port, stopped at the end."""
    server = ChatServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            server.asked_at.append(time.monotonic())
            server.requests.append(json.loads(self.rfile.read(length)))
            server.headers.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
            index = min(len(server.requests), len(server.answers)) - 1
            answer = server.answers[index]
            time.sleep(answer.delay_s)
            body = _body(answer)
            try:
                self.send_response(answer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                if answer.retry_after is None:
                    self.send_header("retry-after-ms", "1")
                else:
                    self.send_header("Retry-After", answer.retry_after)
                self.end_headers()
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client gave up waiting

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    server.base_url = f"http://127.0.0.1:{http.server_port}/v1"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


def case_text(number: int) -> str:
    """Text of a golden reply."""
    return (CASES / f"case_{number:02d}.json").read_bytes().decode()
