"""GEPA writes prompts through an endpoint, scored by replay on training tasks; off without one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import pytest

from evaluators.cases import Action, Case
from evoplane.settings import Settings
from flows.interventions import Proposal, gepa_prompts
from registry.manifest import Manifest
from tests.evaluators.conftest import make_case
from tests.surfaces.making import applied, asked, evidence, sent

MAGIC = "State amounts in euros."


class Endpoint(HTTPServer):
    """An OpenAI-compatible model that always writes the same instructions."""

    said: list[dict[str, Any]]


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        self.server.said.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        message = {"role": "assistant", "content": f"```\n{MAGIC}\n```"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint(("127.0.0.1", 0), _Handler)
    server.said = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def config(url: str, calls: int = 60) -> Settings:
    return Settings.model_validate({"surfaces": {"gepa_url": url, "gepa_model": "m", "gepa_calls": calls}})


def dear(n: int = 24) -> list[Case]:
    asks = ("Fee for A{}?", "How much is the fee for order A{}?", "Tell me what A{} costs.", "Price of A{}, please!")
    return [
        make_case(
            asks[k % 4].format(100 + k),
            text="It is 5 dollars.",
            demonstration={"role": "assistant", "content": "It is 5 euros."},
            demonstration_id=f"an_{k}",
        )
        for k in range(n)
    ]


class Replayed:
    """The served model: it states euros when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Case] = []

    def __call__(self, manifest: Manifest, cases: Sequence[Case]) -> Mapping[str, Action | None]:
        self.asked += cases
        told = MAGIC in manifest.harness.system_append
        return {case.key: Action(text=f"It is 5 {'euros' if told else 'dollars'}.") for case in cases}


def run(cases: list[Case], settings: Settings) -> tuple[list[Proposal], Replayed, Any]:
    seen, replayed = evidence(cases), Replayed()
    return gepa_prompts.propose(seen, settings, 0.005, 0.005, answer=replayed), replayed, seen


def test_what_the_endpoint_writes_is_proposed_when_replay_scores_it_higher(endpoint: Endpoint) -> None:
    (proposal,), replayed, seen = run(dear(), config(f"http://127.0.0.1:{endpoint.server_port}/v1"))
    assert MAGIC in proposal.diff
    assert proposal.uses_heldout_tasks
    body = sent(applied(seen, proposal), asked("How much?", "Be short."))
    assert body["messages"][0]["content"] == f"Be short.\n{MAGIC}"
    assert not any(seen.split.is_held_out(case) for case in replayed.asked), "only training tasks are tried on"
    assert seen.split.heldout
    assert endpoint.said[0]["model"] == "m"
    assert len(replayed.asked) <= 60 + 48, "a run ends within its budget, but for the evaluation under way"


def test_cases_that_may_not_be_trained_on_are_read_by_no_model(endpoint: Endpoint) -> None:
    cases = [msgspec.structs.replace(case, trainable=False) for case in dear()]
    made, replayed, _ = run(cases, config(f"http://127.0.0.1:{endpoint.server_port}/v1"))
    assert (made, replayed.asked, endpoint.said) == ([], [], [])


def test_without_an_endpoint_or_with_one_that_does_not_answer_nothing_is_proposed() -> None:
    assert run(dear(), Settings())[0] == []
    assert run(dear(8), config("http://127.0.0.1:9/v1", calls=12))[0] == []
