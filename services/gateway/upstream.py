"""The model server, over one shared aiohttp session (measured: httpx alone costs more than all the rest)."""

from __future__ import annotations

import aiohttp

_KEEP_ALIVE_S = 2.0
"""Shorter than uvicorn's 5 s, so that a connection isn't reused in the moment the server closes it."""
_CONNECT_S = 5.0

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authenticate",
     "content-length", "content-encoding", "date", "server"}
)  # fmt: skip
"""Not passed on: they speak of this connection, or of a body that has been decompressed since."""


class Upstream:
    """Where requests go. `name` is what contexts call it."""

    def __init__(self, url: str, timeout_s: float, name: str = "vllm") -> None:
        self.url = url
        self.name = name
        self.timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s, sock_connect=_CONNECT_S),
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Send a request; gives the response when its headers are there. Raises aiohttp's errors."""
        assert self._session is not None, "start() comes first"
        return await self._session.post(
            self.url + path,
            data=body,
            headers={"content-type": "application/json", "accept-encoding": "identity", **headers},
        )


def passed_on(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """The upstream's headers that reach the client."""
    return [(name.lower(), value) for name, value in response.raw_headers if _passes(name)]


def _passes(name: bytes) -> bool:
    lower = name.decode("latin-1").lower()
    return lower not in _HOP_BY_HOP and not lower.startswith("x-evoplane-")
