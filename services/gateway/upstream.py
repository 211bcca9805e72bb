"""Where requests go: our worker, and any provider that is configured, over one shared aiohttp session.

(Measured: httpx alone costs more than all the rest.)
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterable
from fnmatch import fnmatchcase

import aiohttp
from yarl import URL

from evoplane.settings import Settings, SettingsError, UpstreamSettings
from services.gateway.asgi import sendable
from services.proxy.dialects import BY_NAME, Dialect

_KEEP_ALIVE_S = 2.0
"""Shorter than uvicorn's 5 s, so that a connection isn't reused in the moment the server closes it."""
_CONNECT_S = 5.0

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authenticate",
     "content-length", "content-encoding", "date", "server"}
)  # fmt: skip
"""Not passed on: they speak of this connection, or of a body that has been decompressed since."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})

_OURS = _HOP_BY_HOP | {
    "host", "authorization", "x-api-key", "api-key", "cookie", "accept-encoding", "content-type",
    "proxy-authorization", "expect",
}  # fmt: skip
"""A client's headers that are for the gateway."""


class Upstream:
    """One of them. `name` is what contexts call it."""

    def __init__(
        self, name: str, url: str, timeout_s: float, session: aiohttp.ClientSession, *, own: bool = False
    ) -> None:
        self.name = name
        self.url = url
        self.timeout_s = timeout_s
        self.own = own
        """Is it our worker, whose answers carry token ids when asked?"""
        self.dialects: frozenset[str] = frozenset(BY_NAME)
        self.translated: frozenset[str] = frozenset()
        """Dialects that are translated to chat on their way to it."""
        self.patterns: tuple[str, ...] = ()
        self.tenant: str | None = None
        """Whose account it is, when it is one tenant's."""
        self._secret: str | None = None
        self._session = session

    @classmethod
    def configured(
        cls, name: str, settings: UpstreamSettings, timeout_s: float, session: aiohttp.ClientSession
    ) -> Upstream:
        """A provider; raises `SettingsError` when its key is not in the environment."""
        upstream = cls(name, settings.url.rstrip("/").removesuffix("/v1"), timeout_s, session)
        upstream.dialects = frozenset(settings.dialects)
        upstream.translated = frozenset(settings.translate)
        upstream.patterns = tuple(settings.models)
        upstream.tenant = settings.tenant
        if settings.key_env is not None:
            upstream._secret = os.environ.get(settings.key_env)
            if not upstream._secret:
                raise SettingsError(f"upstreams.{name}.key_env: {settings.key_env} is not set in the environment")
        return upstream

    @property
    def whom(self) -> str:
        """How an error speaks of it."""
        return called("upstream", self.name, self.url)

    def speaks(self, dialect: Dialect) -> bool:
        """Does it speak the dialect, itself or by translation?"""
        return dialect.name in self.dialects or dialect.name in self.translated

    def serves(self, model: str) -> bool:
        return model in self.patterns or any(fnmatchcase(model, pattern) for pattern in self.patterns)

    async def post(self, path: str, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> aiohttp.ClientResponse:
        """Send a request to `/v1` + `path`; gives the response when its headers are there. Raises aiohttp's errors."""
        response = await self._session.post(
            f"{self.url}/v1{path}",
            data=body,
            headers=[
                *headers,
                ("content-type", "application/json"),
                ("accept-encoding", "identity"),
                *self._credentials(path),
            ],
            allow_redirects=False,  # to wherever an upstream points, the operator's key must not go
        )
        if response.status in _REDIRECTS:
            response.close()
            raise aiohttp.ClientPayloadError(f"it redirects (status {response.status}), which is not followed")
        return plausible(response)

    def _credentials(self, path: str) -> list[tuple[str, str]]:
        if self._secret is None:
            return []
        if path.startswith(BY_NAME["anthropic.messages"].path):
            return [("x-api-key", self._secret)]
        return [("authorization", f"Bearer {self._secret}")]


class Upstreams:
    """Our worker and the configured providers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def start(self) -> None:
        gateway = self._settings.gateway
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=gateway.upstream_timeout_s, sock_connect=_CONNECT_S),
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self.worker = Upstream("vllm", self._settings.vllm_url, gateway.upstream_timeout_s, self._session, own=True)
        self.worker.translated = frozenset(self._settings.worker.translate)
        self.providers = [
            Upstream.configured(name, each, gateway.upstream_timeout_s, self._session)
            for name, each in self._settings.upstreams.items()
        ]

    async def close(self) -> None:
        await self._session.close()

    def serving(self, model: str, tenant: str) -> Upstream | None:
        """The first provider that serves the model, and this tenant; None when none does."""
        for each in self.providers:
            if each.tenant in (None, tenant) and each.serves(model):
                return each
        return None

    def names(self, tenant: str) -> list[str]:
        """What the providers that serve this tenant are asked for by: model names, and patterns of them."""
        served = [each for each in self.providers if each.tenant in (None, tenant)]
        return list(dict.fromkeys(name for each in served for name in each.patterns))


def is_pattern(name: str) -> bool:
    """Does it stand for any number of models' names?"""
    return any(sign in name for sign in "*?[")


def called(kind: str, name: str, url: str) -> str:
    """How an error speaks of a server behind the gateway: with the host and port of its URL."""
    try:
        parsed = URL(url)
        place = f"{parsed.host_subcomponent}:{parsed.port}" if parsed.host else url
    except ValueError:  # it is no URL, which is why it can't be reached
        place = url
    return f"The {kind} {name!r} ({place})"


def reason(error: aiohttp.ClientError) -> str:
    """What the system said of a request that failed, without aiohttp's words around it."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        said = error.os_error
        if isinstance(said, ssl.SSLError | socket.gaierror) or not said.errno:  # their numbers are none of the system's
            return said.strerror or str(said)
        return os.strerror(said.errno)
    return str(error) or type(error).__name__


def plausible(response: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
    """The response, if its status is one that can be passed on; raises `aiohttp.ClientError` for any other."""
    if not 200 <= response.status <= 599:
        response.close()
        raise aiohttp.ClientPayloadError(f"its status {response.status} is none of HTTP's")
    return response


def forwarded(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """A client's headers that reach the upstream."""
    return [(name, value) for name, value in headers if name not in _OURS and not name.startswith("x-evoplane-")]


def passed_on(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """The upstream's headers that reach the client."""
    return [(name.lower(), value) for name, value in response.raw_headers if _passes(name) and sendable(value)]


def _passes(name: bytes) -> bool:
    lower = name.decode("latin-1").lower()
    return lower not in _HOP_BY_HOP and not lower.startswith("x-evoplane-")
