"""The load generator against its scripted upstream, and the arithmetic of the figures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest

from benchmarks.gateway.figures import bars, figures
from benchmarks.gateway.load import Clients, Phase, Streams, Wrong
from benchmarks.gateway.requests import Form, Requests
from benchmarks.gateway.rounds import CONCURRENCIES, Results
from benchmarks.gateway.upstream import FRAME_S, FRAMES, MODEL, Upstream

_FORM = Form("/v1/chat/completions", MODEL, (("authorization", "Bearer x"),))
_MS = 1_000_000


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


def test_requests_are_about_a_kilobyte_and_no_two_are_alike() -> None:
    requests = Requests().chat(_FORM, 200)
    bodies = [request.partition(b"\r\n\r\n")[2] for request in requests]
    assert len(set(bodies)) == 200
    assert all(800 < len(body) < 1200 for body in bodies)
    assert all(len(orjson.loads(body)["messages"]) == 2 for body in bodies)


async def test_a_closed_loop_asks_every_request_once(port: int) -> None:
    requests = Requests()
    async with Clients.connected(port, 4, requests.chat(_FORM, 8)) as clients:
        phase = await clients.closed_loop(requests.chat(_FORM, 101), 30)
    assert len(phase.ns) == 101
    assert 0 < phase.percentile_ms(50) <= phase.percentile_ms(99)


async def test_an_open_loop_counts_the_wait_for_a_free_connection() -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"content":"x"}'
        while await reader.readuntil(b"\r\n\r\n"):
            await reader.readuntil(b"max_tokens")
            await asyncio.sleep(0.02)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    server = await asyncio.start_server(slowly, "127.0.0.1", 0)
    requests = Requests()
    async with Clients.connected(server.sockets[0].getsockname()[1], 1, requests.chat(_FORM, 1)) as clients:
        phase = await clients.open_loop(requests.chat(_FORM, 100), rate=100, seconds=0.3)
    server.close()
    # 100 a second arrive where 50 a second are answered: the later ones wait for those before them
    assert phase.ns[0] < 40 * _MS
    assert phase.percentile_ms(99) > 60


async def test_a_stream_is_followed_piece_by_piece(port: int) -> None:
    requests = Requests()
    async with Clients.connected(port, 2, requests.chat(_FORM, 2)) as clients:
        streams = await clients.streams(requests.chat(_FORM, 2, stream=True))
    assert len(streams.ttft_ns) == 2
    assert len(streams.gaps_ns) == 2 * (FRAMES - 1)
    assert sum(streams.gaps_ns) / len(streams.gaps_ns) / 1e9 == pytest.approx(FRAME_S, rel=0.2)


async def test_an_answer_that_is_an_error_is_not_measured() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nslow")

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    with pytest.raises(Wrong, match="status 429: slow"):
        async with Clients.connected(server.sockets[0].getsockname()[1], 1, Requests().chat(_FORM, 1)):
            pass
    server.close()


def _phase(ms: float, rps: float = 100) -> Phase:
    return Phase([int(ms * _MS)] * 100, seconds=100 / rps, cpu_s=0.05)


def _results(**rounds: list[float]) -> Results:
    """Latencies of each target's rounds, the same at every concurrency."""
    results = Results(fsync_ms=[4.0])
    for target, latencies in rounds.items():
        for concurrency in CONCURRENCIES:
            results.phases[target, concurrency] = [_phase(ms) for ms in latencies]
        results.streams[target, 1] = [Streams([int(ms * _MS)] * 3, [20 * _MS] * 63) for ms in latencies]
    return results


def test_what_is_added_is_the_median_difference_to_the_upstream_of_the_same_round() -> None:
    # in the second round the whole machine was slow: both were, and the difference is what it always is
    found = figures(_results(direct=[1, 51, 1], **{"async": [2, 52, 3]}))
    assert found["added_p50_ms_c1"] == 1.0
    assert found["added_p99_ms_c16"] == 1.0
    assert found["added_ttft_p50_ms"] == 1.0
    assert found["cpu_ms_per_request"] == 0.5


def test_the_frontier_is_the_highest_rate_that_was_answered_in_time() -> None:
    results = _results(direct=[1], **{"async": [2]})
    for step, ms in ((0.1, 3.0), (0.5, 8.0), (1.0, 60.0)):
        results.frontier["async", step] = [_phase(ms, rps=1000 * step)]
    found = figures(results)
    assert (found["frontier_rps_5ms"], found["frontier_rps_10ms"], found["frontier_rps_50ms"]) == (100, 500, 500)


def test_a_bar_without_its_other_side_is_neither_met_nor_missed() -> None:
    found = figures(_results(direct=[1], **{"async": [2], "portkey": [9]}))
    met = {bar.name: bar.met for bar in bars(found)}
    assert found["mlflow_added_p50_ms_c16"] is None
    assert met["added_p50_ms_c16 below mlflow's"] is None
    assert met["added_p50_ms_c16 below portkey's"] is True
    assert met["durable_added_p50_ms_c1"] is None
    assert met["added_p50_ms_c1"] is True
