"""What agents talk to: the gateway, who answers behind it, and where it is recorded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from evoplane.settings.forms import Host, HttpUrl, Port, Variable
from evoplane.settings.section import Section


class Gateway(Section):
    host: Host = Field("127.0.0.1", description="address agents connect to")
    port: Port = Field(8400, description="public ingress: gateway, router and data proxy in one process")
    max_body_bytes: int = Field(16 * 2**20, description="larger request bodies are refused with 413")
    max_messages: int = Field(10_000, description="more messages in one request are refused with 400")
    capture: Literal["durable", "async"] = Field(
        "durable", description="durable: the last byte waits for the event's commit; async: it does not"
    )
    upstream_timeout_s: float = Field(600, description="longest wait for one upstream answer")
    session_idle_s: float = Field(1800, description="a trajectory closes after this long without a request")
    memory_items: int = Field(
        8, description="memory items put before the model per request, at most, whatever a version asks for"
    )
    memory_bytes: int = Field(2000, description="size of the memory overlay, and of the skills' overlay, at most")
    overlay_bytes: int = Field(8000, description="what all overlays together add to a request, at most")


Translated = Literal["openai.responses", "anthropic.messages"]
"""Dialects that can be translated to openai.chat."""


class UpstreamSettings(Section):
    """A model provider behind the gateway."""

    url: HttpUrl = Field(description="base URL, with or without /v1")
    dialects: list[Literal["openai.chat", "openai.responses", "openai.completions", "anthropic.messages"]] = Field(
        ["openai.chat", "openai.responses", "openai.completions"], description="what it speaks"
    )
    models: list[str] = Field(description="names it serves; * stands for anything")
    translate: list[Translated] = Field([], description="dialects that are translated to openai.chat for it")
    key_env: Variable | None = Field(None, description="environment variable that holds its API key")
    tenant: str | None = Field(
        None,
        description="its key is this tenant's own: only its requests are served, and what they name there passes",
    )

    @model_validator(mode="after")
    def _translates_to_what_it_speaks(self) -> UpstreamSettings:
        if self.translate and "openai.chat" not in self.dialects:
            raise ValueError("translate needs an upstream that speaks openai.chat (see dialects)")
        return self


class Price(Section):
    """What a model costs, in any one currency."""

    input_per_million: float = Field(ge=0, description="per million prompt tokens")
    output_per_million: float = Field(ge=0, description="per million completion tokens")


class McpServer(Section):
    """A tool server behind `/mcp/<name>`."""

    url: HttpUrl = Field(description="its streamable HTTP endpoint")
    headers: dict[str, Variable] = Field(
        {}, description="headers it needs, and the environment variable that holds each"
    )
    effects: dict[str, Literal["none", "read", "idempotent_write", "write", "irreversible"]] = Field(
        {}, description="what a tool may change, where its annotations don't say or aren't believed"
    )
    boundary: Literal["inside", "tenant", "external", "human"] | None = Field(
        None, description="how far its tools reach, where that overrules their annotations"
    )


class A2aAgent(Section):
    """Another agent behind `/a2a/<name>`."""

    url: HttpUrl = Field(description="its A2A endpoint (JSON-RPC over HTTP)")
    headers: dict[str, Variable] = Field(
        {}, description="headers it needs, and the environment variable that holds each"
    )
    tenant: str | None = Field(None, description="it works for this tenant only, who may ask it for anything")


class Store(Section):
    engine: Literal["sqlite", "postgres"] = Field(
        "sqlite", description="sqlite: one file a tenant; postgres: one database, named by EVOPLANE_STORE__DSN"
    )
    dsn: SecretStr | None = Field(None, description="connection string of a role bound by row-level security")
    owner_dsn: SecretStr | None = Field(None, description="the tables' owner's, for migrations, when it is another")
    blobs: str = Field(
        "", description="where large content goes, any fsspec URL; empty: a directory of the store's own"
    )
    inline_bytes: int = Field(262144, description="content larger than this goes there")
    spool_bytes: int = Field(268435456, description="what a tenant's spool may hold while the store is away")
    writer: Literal["process", "thread"] = Field(
        "process", description="what writes a gateway's records: a process beside it, or a thread of its own"
    )
