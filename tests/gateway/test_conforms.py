"""What is stored of an exchange that held a secret conforms to the format."""

from __future__ import annotations

import orjson

from atdp.conformance import check
from tests.gateway.conftest import Running, user


async def test_a_trajectory_with_removed_and_sealed_leaves_conforms(running: Running) -> None:
    said = "my key is sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD and my mail ann@example.com"
    first = await running.chat([user(said)], headers={"x-evoplane-session-id": "s"})
    await running.chat([user("and my phone is +1 415 555 2671")], headers={"x-evoplane-session-id": "s"})
    records = running.chain(first)
    contexts = {record["ctx"] for record in records if "ctx" in record}
    lines = [running.reader.contexts("northwind", id) for id in sorted(contexts)] + records
    assert [finding.message for finding in check(orjson.dumps(line) for line in lines)] == []
