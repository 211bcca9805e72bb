"""Trajectories leave as OpenTelemetry traces: bounded, without what is sealed, each once the collector has taken it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from atdp.convert.otlp.spans import Span
from dashboards.reading import CaseReader
from dashboards.traces import mirror
from dashboards.traces.forward import forward
from dashboards.traces.otlp import request, traces
from evoplane.settings import Settings, SettingsError
from flows import tracing
from services.gateway import traces_out
from services.gateway.traces_out import Counts
from services.proxy.drafts import Close
from services.proxy.reader import StoreReader, open_reader
from services.proxy.store import open_store
from tests.dashboards.deployment import Deployment, made
from tests.governance.drafting import call, opened
from tests.proxy.drafting import CONTEXT, event


class Collector(BaseHTTPRequestHandler):
    got: list[ExportTraceServiceRequest]
    status = 200
    never = ""
    """A trajectory with which it takes no request."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status = 400 if type(self).never and type(self).never.encode() in body else type(self).status
        if status == 200:
            message = ExportTraceServiceRequest()
            message.ParseFromString(body)
            type(self).got.append(message)
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, type[Collector]]]:
    kind = type("One", (Collector,), {"got": [], "status": 200})
    server = HTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", kind
    server.shutdown()


def with_collector(deployment: Deployment, url: str) -> Settings:
    return deployment.config.model_copy(update={"otlp": deployment.config.otlp.model_copy(update={"url": url})})


def told(kind: type[Collector]) -> list[str]:
    found = []
    for message in kind.got:
        for resource in message.resource_spans:
            for span in resource.scope_spans[0].spans:
                found += [a.value.string_value for a in span.attributes if a.key == "evoplane.trajectory_id"]
    return found


def test_each_trajectory_that_has_ended_is_told_once(collector: tuple[str, type[Collector]], tmp_path: Path) -> None:
    url, kind = collector
    config = with_collector(made(tmp_path, conversations=6), url)
    assert forward(config) == 12
    assert forward(config) == 0
    assert sorted(told(kind)) == sorted(f"tr_{t}_{n}" for t in ("acme", "other") for n in range(6))


def test_what_the_collector_refused_is_sent_again(collector: tuple[str, type[Collector]], tmp_path: Path) -> None:
    url, kind = collector
    config = with_collector(made(tmp_path, conversations=3), url)
    kind.status = 503
    with pytest.raises(httpx.HTTPStatusError):
        forward(config)
    kind.status = 200
    assert forward(config) == 6
    assert len(set(told(kind))) == 6


def test_what_the_collector_never_takes_is_dropped_and_counted_and_the_rest_goes_on(
    collector: tuple[str, type[Collector]], tmp_path: Path
) -> None:
    url, kind = collector
    kind.never = "tr_acme_1"
    config = with_collector(made(tmp_path, conversations=3), url)
    assert forward(config) == 5
    assert sorted(told(kind)) == ["tr_acme_0", "tr_acme_2", "tr_other_0", "tr_other_1", "tr_other_2"]
    assert traces_out.read(config.var) == Counts(taken=5, refused=1)
    assert forward(config) == 0  # it is not asked again
    assert traces_out.read(config.var) == Counts(taken=5, refused=1)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
def test_what_the_operator_can_mend_drops_nothing(
    collector: tuple[str, type[Collector]], tmp_path: Path, status: int
) -> None:
    url, kind = collector
    config = with_collector(made(tmp_path, conversations=1), url)
    kind.status = status
    with pytest.raises(httpx.HTTPStatusError, match=f"^the collector answered {status}$"):
        forward(config)
    assert traces_out.read(config.var) == Counts()


def test_a_header_without_its_variable_is_named(tmp_path: Path) -> None:
    config = made(tmp_path, conversations=1).config
    otlp = config.otlp.model_copy(
        update={"url": "http://127.0.0.1:1", "headers": {"authorization": "NOT_SET_ANYWHERE"}}
    )
    with pytest.raises(SettingsError, match="NOT_SET_ANYWHERE"):
        forward(config.model_copy(update={"otlp": otlp}))


async def test_a_long_trajectory_is_several_traces_of_one_session(tmp_path: Path) -> None:
    store = open_store(Settings.model_validate({"paths": {"var": tmp_path}}))
    await store.start()
    steps = [call(f"e{n}", f"ask {n}", "yes") for n in range(7)]
    await store.append("acme", [CONTEXT, opened("t1"), event("u0"), *steps, Close("t1", "ended")])
    await store.close()
    reader = open_reader(Settings.model_validate({"paths": {"var": tmp_path}}))
    found = traces(reader, "acme", "t1", most=3)
    assert [len(trace) for trace in found] == [4, 4, 2]
    assert len({trace[0].trace_id for trace in found}) == 3
    assert len({trace[0].attributes["session.id"] for trace in found}) == 1
    for trace in found:
        ids = {span.span_id for span in trace}
        assert all(span.parent_id in ids for span in trace[1:])
        assert all(span.trace_id == trace[0].trace_id for span in trace)
    assert request([span for trace in found for span in trace])


async def test_what_is_sealed_does_not_leave(tmp_path: Path) -> None:
    config = Settings.model_validate({"paths": {"var": tmp_path}})
    store = open_store(config)
    await store.start()
    sealed = {"sealed": "blob_1", "commit": "c0ffee", "labels": ["reasoning"], "bytes": 3}
    alike = {"sealed": 1, "labels": 5}
    said = call("e0", "hi", "yes", ext={"request": {"metadata": sealed, "alike": alike}})
    await store.append("acme", [CONTEXT, opened("t1"), said])
    await store.close()
    reader = open_reader(config)
    assert b"c0ffee" not in request([span for trace in traces(reader, "acme", "t1") for span in trace])


def test_failures_come_first_and_nothing_is_told_twice(deployment: Deployment) -> None:
    reader = open_reader(deployment.config)
    cases = CaseReader(reader, "support").read()
    state = mirror.Told()
    first = mirror.choose(cases, state)
    assert sum(not c.success for c in first) == mirror.FAILURES
    assert sum(bool(c.success) for c in first) == mirror.SUCCESSES
    state.known |= {c.trajectory_id: 1 for c in first}
    second = mirror.choose(cases, state)
    assert not {c.trajectory_id for c in first} & {c.trajectory_id for c in second}


def test_one_trajectory_that_cannot_be_told_does_not_keep_back_the_others(
    collector: tuple[str, type[Collector]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, kind = collector
    config = with_collector(made(tmp_path, conversations=2), url)

    def without_one(reader: StoreReader, tenant: str, id: str) -> list[list[Span]]:
        if id == "tr_acme_0":
            raise TypeError("no form as spans")
        return traces(reader, tenant, id)

    monkeypatch.setattr("dashboards.traces.forward.traces", without_one)
    assert forward(config) == 3
    assert sorted(told(kind)) == ["tr_acme_1", "tr_other_0", "tr_other_1"]


@pytest.mark.parametrize("agent", ["counts", "open"])
def test_an_agents_name_takes_no_file_of_ours(
    agent: str, collector: tuple[str, type[Collector]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = collector
    config = with_collector(made(tmp_path, conversations=3), url)
    traces_out.write(config.var, Counts(3, 1))
    forward(config)
    before = {file.name: file.read_bytes() for file in (config.var / "traces").iterdir()}
    monkeypatch.setattr(tracing.tracking, "experiment", lambda *_: "1")
    tracing.to_mlflow(config, open_reader(config), agent, [])
    after = {name: (config.var / "traces" / name).read_bytes() for name in before}
    assert after == before
    assert f"{agent}.json" not in before
