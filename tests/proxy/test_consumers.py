"""A named consumer gets every record at least once, and after an acknowledgement never again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.proxy.consumers import Consumers
from services.proxy.store import EventStore
from tests.proxy.backends import Backend, consumers_of
from tests.proxy.drafting import CONTEXT, event, header


@pytest.fixture
def consumers(backend: Backend) -> Iterator[Consumers]:
    opened = consumers_of(backend)
    yield opened
    opened.close()


def names(found: list) -> list[str]:
    return [f"{tenant}:{record.get('id', record['record'])}" for tenant, record in found]


async def test_what_is_not_acknowledged_comes_again_and_what_is_does_not(
    log: EventStore, backend: Backend, consumers: Consumers
) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    await log.append("b", [CONTEXT, header(), event("e1")])
    first, cursor = consumers.fetch("export", limit=3)
    assert names(first) == ["a:trajectory", "a:e1", "b:trajectory"]
    assert consumers.fetch("export", limit=3) == (first, cursor)
    consumers.ack("export", cursor)
    rest, end = consumers.fetch("export")
    assert names(rest) == ["b:e1"]
    consumers.ack("export", end)
    again = consumers_of(backend)
    assert again.fetch("export") == ([], {})
    assert again.acknowledged("export") == {"a": 2, "b": 2}
    again.close()


async def test_consumers_do_not_see_each_others_acknowledgements(log: EventStore, consumers: Consumers) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    consumers.ack("monitor", consumers.fetch("monitor")[1])
    assert names(consumers.fetch("training-set")[0]) == ["a:trajectory", "a:e1"]
    assert consumers.fetch("monitor")[0] == []


async def test_an_old_cursor_acknowledges_nothing_back(log: EventStore, consumers: Consumers) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    _, old = consumers.fetch("monitor", limit=1)
    consumers.ack("monitor", consumers.fetch("monitor")[1])
    consumers.ack("monitor", old)
    assert consumers.acknowledged("monitor") == {"a": 2}


async def test_the_writer_goes_on_in_its_chains_after_a_consumer_has_acknowledged(
    log: EventStore, consumers: Consumers, reader
) -> None:
    await log.append("a", [CONTEXT, header(), event("e1")])
    consumers.ack("monitor", consumers.fetch("monitor")[1])
    await log.append("a", [event("e2")])
    assert names(consumers.fetch("monitor", tenant="a")[0]) == ["a:e2"]
    assert reader.verify("a", "t1") == []
