"""A judge behind any OpenAI-compatible server, and its verdict on its way to the gateway."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from evaluators.judges.constitution import read_constitution
from evaluators.judges.endpoint import JudgeError, endpoint
from evaluators.judges.judging import judge
from evaluators.rewards.posting import NotTaken, post
from evoplane.settings import Judge


class Server(ThreadingHTTPServer):
    """A real server that answers whatever path with what it is given, and keeps what it was asked."""

    def __init__(self, answer: dict[str, Any], status: int = 200) -> None:
        self.asked: list[dict[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.asked.append({"path": self.path, "authorization": self.headers["authorization"], "body": body})
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def serve() -> Iterator[Any]:
    running: list[Server] = []

    def start(answer: dict[str, Any], status: int = 200) -> Server:
        running.append(Server(answer, status))
        threading.Thread(target=running[-1].serve_forever, daemon=True).start()
        return running[-1]

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


async def test_any_openai_compatible_server_is_a_judge(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "secret")
    content = json.dumps({"verdict": "pass", "reason": "right"})
    server = serve({"id": "x", "object": "chat.completion", "created": 1, "model": "m",
                    "choices": [{"index": 0, "finish_reason": "stop",
                                 "message": {"role": "assistant", "content": content}}]})  # fmt: skip
    ask = endpoint(Judge(url=f"{server.url}/v1", model="m", key_env="THE_KEY"))
    verdict = await judge(ask, [{"role": "user", "content": "2+2?"}], "4", read_constitution(), votes=2)
    assert (verdict.ruling, verdict.confidence) == ("pass", 1)
    assert {(a["path"], a["authorization"]) for a in server.asked} == {("/v1/chat/completions", "Bearer secret")}
    assert sorted(a["body"]["seed"] for a in server.asked) == [0, 1]


async def test_a_judge_that_refuses_abstains(serve: Any) -> None:
    ask = endpoint(Judge(url=serve({"error": {"message": "no"}}, 400).url, model="m"))
    assert (await judge(ask, [], "4", read_constitution())).ruling == "abstain"


def test_a_judge_that_is_not_configured_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(JudgeError, match=r"judge\.url"):
        endpoint(Judge())
    with pytest.raises(JudgeError, match="NO_KEY"):
        endpoint(Judge(url="http://x", model="m", key_env="NO_KEY"))


def test_signals_are_posted_in_batches_and_a_refusal_is_an_error(serve: Any) -> None:
    server = serve({"ids": [], "bound": [True, False]}, 202)
    assert post(server.url, "evo_k", [{"name": "judge"}] * 501) == 2
    assert [len(a["body"]) for a in server.asked] == [500, 1]
    with pytest.raises(NotTaken, match="403"):
        post(serve({"error": "scope"}, 403).url, "evo_k", [{"name": "judge"}])
    with pytest.raises(NotTaken, match="does not answer"):
        post("http://127.0.0.1:9", "evo_k", [{"name": "judge"}])
