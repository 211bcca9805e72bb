"""PostgreSQL sees to it that a tenant is alone, that positions are passed in order, and that tables are there."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from services.proxy.engines.base import Misconfigured
from services.proxy.engines.postgres import SCHEMA_VERSION, PostgresEngine, connected, schema_version
from services.proxy.migrations.run import migrate
from services.proxy.store import EventStore
from tests.proxy.backends import Postgres, consumers_of, reader_of, store_of
from tests.proxy.drafting import CONTEXT, event, header
from tests.proxy.postgres_server import database

TABLES = ("logs", "records", "trajectories", "contexts", "parts", "pending", "sealed", "trajectory_keys", "consumers")


@pytest.fixture
def server(postgres_admin: str, tmp_path: Path):
    with database(postgres_admin, tmp_path) as opened:
        yield opened


async def filled(server: Postgres) -> None:
    opened = store_of(server)
    await opened.start()
    for tenant in ("a", "b"):
        await opened.append(tenant, [CONTEXT, header(), event("e1", text="z" * 5000)])
    await opened.close()


async def test_a_query_without_a_tenant_and_one_with_a_wrong_tenant_see_nothing(server: Postgres) -> None:
    await filled(server)
    with psycopg.connect(server.dsn) as connection:
        for tenant in (None, "", "c"):
            if tenant is not None:
                connection.execute("SELECT set_config('app.tenant', %s, true)", (tenant,))
            for table in TABLES:
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), (tenant, table)
        connection.execute("SELECT set_config('app.tenant', 'a', true)")
        assert connection.execute("SELECT DISTINCT tenant FROM records").fetchall() == [("a",)]


async def test_a_row_of_another_tenant_cannot_be_written_and_a_partition_gives_nothing_away(server: Postgres) -> None:
    await filled(server)
    with psycopg.connect(server.dsn) as connection:
        connection.execute("SELECT set_config('app.tenant', 'a', true)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"), connection.transaction():
            connection.execute("INSERT INTO consumers (tenant, name, position) VALUES ('b', 'x', 1)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute("SELECT * FROM records_0")
    owner = make_conninfo(server.dsn, user="evoplane_owner")
    with psycopg.connect(owner) as connection:
        seen = [connection.execute(f"SELECT count(*) FROM records_{n}").fetchone() for n in range(16)]
        assert seen == [(0,)] * 16


async def test_the_gateways_role_can_neither_change_nor_delete_a_record(server: Postgres) -> None:
    await filled(server)
    with psycopg.connect(server.dsn) as connection:
        connection.execute("SELECT set_config('app.tenant', 'a', true)")
        for statement in ("UPDATE records SET kind='x'", "DELETE FROM records", "TRUNCATE records"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(statement)


async def test_a_tenant_does_not_stay_set_after_a_transaction(server: Postgres) -> None:
    engine = PostgresEngine(server.dsn)
    writer = engine.writing("a")
    with writer.transaction():
        writer.insert("contexts", "id,body", [("c", b"{}")])
    assert writer.query("SELECT id FROM contexts") == []
    engine.close()


async def test_a_superuser_is_refused_because_policies_do_not_hold_for_it(server: Postgres, tmp_path: Path) -> None:
    opened = EventStore(tmp_path / "x", engine=PostgresEngine(server.admin))
    with pytest.raises(Misconfigured, match="no superuser"):
        await opened.start()


def test_a_first_start_makes_the_tables_when_the_role_may(postgres_admin: str) -> None:
    with psycopg.connect(postgres_admin, autocommit=True) as connection:
        connection.execute("CREATE ROLE single LOGIN")
        connection.execute("CREATE DATABASE fresh OWNER single")
        connection.execute("CREATE DATABASE foreign_one")
        connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    single = make_conninfo(postgres_admin, dbname="fresh", user="single")
    starting = [threading.Thread(target=PostgresEngine(single).prepare) for _ in range(2)]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join()
    with connected(single) as connection:
        assert schema_version(connection) == SCHEMA_VERSION
    assert migrate(single) == SCHEMA_VERSION
    with pytest.raises(Misconfigured, match="store migrate"):
        PostgresEngine(make_conninfo(postgres_admin, dbname="foreign_one", user="single")).prepare()


async def test_a_consumer_misses_no_record_of_a_transaction_that_was_slow_to_commit(server: Postgres) -> None:
    opened = store_of(server)
    await opened.start()
    await opened.append("a", [CONTEXT, header()])
    slow = PostgresEngine(server.dsn).writing("a")
    consumers = consumers_of(server)
    with slow.transaction():
        position = slow.next_position()
        slow.insert(
            "records",
            "position,id,trajectory_id,seq,record,kind,agent,committed,body",
            [(position, "slow", "t9", 0, "event", "user_message", "support", 0.0, b'{"id":"slow"}')],
        )
        slow.used_position(position)
        later = asyncio.ensure_future(opened.append("a", [event("later")]))
        await asyncio.sleep(0.2)
        before, cursor = await asyncio.to_thread(consumers.fetch, "monitor")
        assert not later.done()
        consumers_behind = [record.get("id") for _, record in before]
    await later
    assert consumers_behind == [None]
    found, _ = consumers.fetch("monitor")
    assert [record.get("id") for _, record in found] == [None, "slow", "later"]
    assert cursor == {"a": 1}
    consumers.close()
    await opened.close()


async def test_the_store_goes_on_by_its_spool_when_the_server_drops_its_connections(server: Postgres) -> None:
    opened = store_of(server)
    await opened.start()
    await opened.append("a", [CONTEXT, header()])
    reader = reader_of(server)
    assert reader.tenants() == ["a"]
    with psycopg.connect(server.admin, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename='evoplane_gateway' AND datname=%s",
            (connection.info.dbname,),
        )
    await opened.append("a", [event("e1")])
    async with asyncio.timeout(5):
        while opened.state != "ok":
            await asyncio.sleep(0.02)
    await opened.append("a", [event("e2")])
    with pytest.raises(Exception, match=r"terminat|closed"):
        reader.records("a", "t1")
    assert [record["id"] for record in reader.records("a", "t1")[1:]] == ["e1", "e2"]
    reader.close()
    await opened.close()
