"""A gateway with real sockets, a real store and a scripted model server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import uvicorn

from evoplane.settings import Settings
from registry import control, pointers, tenants
from registry.manifest import AgentVersion, Manifest, MemoryItem, Policy
from services.gateway.app import create_app
from services.proxy.dialects import BY_NAME
from services.proxy.store import StoreReader
from tests.gateway.upstream import ScriptedUpstream

MODEL = "smollm2-135m"


@dataclass
class Running:
    """A gateway under test, and what one needs to talk to it."""

    url: str
    settings: Settings
    upstream: ScriptedUpstream
    http: aiohttp.ClientSession
    secrets: dict[str, str]
    reader: StoreReader
    connection: Any
    server: list[Any] = field(default_factory=list)
    """The server and its task."""

    def headers(self, key: str = "northwind", **more: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secrets[key]}", **{k.replace("_", "-"): v for k, v in more.items()}}

    async def chat(
        self, messages: list[dict[str, Any]], key: str = "northwind", headers: dict[str, str] | None = None, **body: Any
    ) -> aiohttp.ClientResponse:
        """One chat completion, read to its end."""
        request = {"model": MODEL, "messages": messages, **body}
        response = await self.http.post(
            f"{self.url}/v1/chat/completions", json=request, headers={**self.headers(key), **(headers or {})}
        )
        with contextlib.suppress(aiohttp.ClientPayloadError):
            await response.read()
        return response

    async def post(
        self, path: str, body: Any, key: str = "northwind", headers: dict[str, str] | None = None
    ) -> aiohttp.ClientResponse:
        """Any request, read to its end."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"content-type": "application/json", **self.headers(key), **(headers or {})}
        response = await self.http.post(self.url + path, data=data, headers=headers)
        with contextlib.suppress(aiohttp.ClientPayloadError):
            await response.read()
        return response

    def resolved(self, response: aiohttp.ClientResponse, tenant: str = "northwind") -> dict[str, Any]:
        """The stored `llm_call` of a reply with everything it points at."""
        return self.reader.resolve(tenant, self.event(response, tenant))

    async def feedback(self, item: Any, key: str = "northwind") -> aiohttp.ClientResponse:
        response = await self.http.post(f"{self.url}/v1/feedback", json=item, headers=self.headers(key))
        await response.read()
        return response

    async def report(self, event: Any, key: str = "northwind") -> aiohttp.ClientResponse:
        response = await self.http.post(f"{self.url}/v1/events", json=event, headers=self.headers(key))
        await response.read()
        return response

    async def stop(self) -> None:
        """Stop the gateway as a signal would."""
        self.server[0].should_exit = True
        await self.server[1]

    async def wait_for_control(self) -> None:
        """Until the gateway has looked at the control database again."""
        began = time.monotonic()
        async with asyncio.timeout(10):
            while await self._looked_at_control() <= began:
                await asyncio.sleep(0.005)

    async def _looked_at_control(self) -> float:
        """The moment of its last look, or one up to a millisecond before."""
        asked = time.monotonic()
        async with self.http.get(f"{self.url}/metrics") as response:
            (age,) = re.findall(r"^evoplane_control_age_seconds (.+)$", await response.text(), re.MULTILINE)
        return asked - float(age) - 0.001

    def event(self, response: aiohttp.ClientResponse, tenant: str = "northwind") -> dict[str, Any]:
        """The stored `llm_call` of a reply."""
        record = self.reader.record(tenant, response.headers["x-evoplane-event-id"])
        assert record is not None
        return record

    def chain(self, response: aiohttp.ClientResponse, tenant: str = "northwind") -> list[dict[str, Any]]:
        """The trajectory of a reply; it verifies."""
        id = self.event(response, tenant)["trajectory_id"]
        assert self.reader.verify(tenant, id) == []
        return self.reader.records(tenant, id)

    def route(self, action: Any, *args: Any, **kwargs: Any) -> None:
        """Change the agent's pointers, as another process would."""
        action(self.connection, "support", *args, **kwargs)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def memory(tenant: str, topic: str, text: str, at: str = "2026-01-01T00:00:00Z") -> MemoryItem:
    return MemoryItem(id=f"m-{topic}-{at}", tenant=tenant, topic=topic, text=text, trust="vetted", created_at=at)


def version(label: str, served: str, *items: MemoryItem) -> AgentVersion:
    manifest = Manifest(policy=Policy(base=MODEL, served_name=served), memory=items)
    return AgentVersion(agent="support", version=label, digest=manifest.digest, manifest=manifest)


def with_sections(settings: Settings, **sections: Any) -> Settings:
    """The settings with more sections; what was not set stays unset."""
    return Settings.model_validate({**settings.model_dump(exclude_unset=True), **sections})


_LOOK_S = 0.005


class _Server(uvicorn.Server):
    """Looks more often whether it shall stop, and stops without uvicorn's pause: a tenth of a second is long where
    every test stops one."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(_LOOK_S)

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(_LOOK_S)
                for server in self.servers:
                    await server.wait_closed()
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


async def serve(settings: Settings) -> tuple[str, uvicorn.Server, asyncio.Task[None]]:
    """A gateway on a free port, as `python -m services.gateway` would run it, but for what writes its records.

    That is a thread here, unless the settings say otherwise: it starts sooner, and a test can get in its way.
    """
    if "writer" not in settings.store.model_fields_set:
        settings = settings.model_copy(update={"store": settings.store.model_copy(update={"writer": "thread"})})
    config = uvicorn.Config(
        create_app(settings),
        port=0,
        http="httptools",
        ws="websockets-sansio",
        lifespan="on",
        log_config=None,
        access_log=False,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
        assert not task.done(), "the gateway did not start"
    port = server.servers[0].sockets[0].getsockname()[1]
    return f"http://127.0.0.1:{port}", server, task


@pytest.fixture
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    scripted = ScriptedUpstream()
    await scripted.start()
    yield scripted
    await scripted.close()


def prepared(root: Path, upstream_port: int, **gateway: Any) -> tuple[Settings, Any, dict[str, str]]:
    """Settings and a control database with two tenants, one agent, and keys."""
    vendor = {
        "url": f"http://127.0.0.1:{upstream_port}/v1",
        "dialects": list(BY_NAME),
        "models": ["gpt-1", "gpt-fake", "claude-*"],
    }
    settings = Settings.model_validate(
        {
            "paths": {"var": root},
            "worker": {"vllm_port": upstream_port},
            "gateway": gateway,
            "upstreams": {"vendor": vendor},
        }
    )
    connection = control.connect(settings.control_db)
    with control.transaction(connection):
        secrets = _fill(connection)
    return settings, connection, secrets


def _fill(connection: Any) -> dict[str, str]:
    tenants.create_agent(connection, "support", MODEL)
    secrets = {}
    for tenant, train in (("northwind", "allow"), ("lumen", "pending")):
        tenants.create_tenant(connection, tenant, train=train)
        secrets[tenant] = tenants.create_key(connection, tenant, "support")[1]
    secrets["evaluate"] = tenants.create_key(connection, "northwind", "support", "evaluate")[1]
    secrets["operate"] = tenants.create_key(connection, "northwind", "support", "operate")[1]
    for each in (version("1", MODEL), version("2", "support-v2"), version("3", "support-v3")):
        pointers.put_version(connection, each)
    pointers.set_champion(connection, "support", "1", "first", "test")
    return secrets


@asynccontextmanager
async def gateway(
    settings: Settings, upstream: ScriptedUpstream, connection: Any, secrets: dict[str, str]
) -> AsyncIterator[Running]:
    """A gateway as `prepared` has prepared it, until the block ends."""
    url, *server = await serve(settings)
    async with aiohttp.ClientSession() as http:
        running = Running(url, settings, upstream, http, secrets, StoreReader(settings.store_dir), connection, server)
        yield running
    await running.stop()
    connection.close()


@pytest.fixture
async def running(tmp_path: Path, upstream: ScriptedUpstream, request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    settings, connection, secrets = prepared(tmp_path, upstream.port, **getattr(request, "param", {}))
    async with gateway(settings, upstream, connection, secrets) as running:
        yield running
