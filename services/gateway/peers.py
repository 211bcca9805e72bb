"""Servers behind the gateway that are not models (tools, other agents): reaching them, byte for byte.

The client's headers travel with its request, less those that speak of the connection or are for the
gateway; the server's own credentials come from the environment. A client that has a credential for the
server itself sends it as `authorization` and the gateway's key as `x-evoplane-key`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import quote

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from registry.tenants import Key, key_digest
from services.gateway.asgi import Request, sendable
from services.gateway.errors import ApiError, forbidden, unauthorized
from services.gateway.upstream import plausible
from services.proxy.clients import CONTROL, MAX_ID_LENGTH

_KEEP_ALIVE_S = 2.0
"""Shorter than common servers' 5 s, so that a connection isn't reused in the moment the server closes it."""
_CONNECT_S = 5.0
_REDIRECTS = 3
_MOVED = frozenset({307, 308})

_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"content-length", b"expect",
     b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"}
)  # fmt: skip
"""About this connection only."""
_OURS = frozenset({b"host", b"cookie", b"x-api-key", b"accept-encoding"})
"""Of a request: for the gateway."""
_THEIRS = frozenset({b"date", b"server", b"set-cookie"})
"""Of a reply: about the server behind."""

_IN_PATH = "/:@!$&'()*+,;="
"""Stands in a path for itself (RFC 3986, `pchar`), beside letters, digits and `-._~`."""

Headers = list[tuple[bytes, bytes]]


class Peers:
    """One HTTP session to all of them, opened when it is first needed."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        """The longest silence while an answer is awaited."""
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def open(
        self, method: str, url: URL, headers: CIMultiDict[str], body: bytes | None, *, endless: bool = False
    ) -> aiohttp.ClientResponse:
        """The response when its headers are there; raises aiohttp's errors. `endless`: silence is no fault.

        A redirect within the same origin is followed; any other is the client's to see.
        """
        silence = None if endless else self.timeout_s
        for _ in range(_REDIRECTS):
            response = await self._client().request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                skip_auto_headers=("user-agent", "accept", "content-type"),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silence),
            )
            target = response.headers.get("location")
            if response.status not in _MOVED or target is None:
                return plausible(response)
            try:
                to = url.join(URL(target))
                elsewhere = to.origin() != url.origin()
            except ValueError as error:
                response.close()
                raise aiohttp.ClientPayloadError(f"it redirects to what is no address: {error}") from error
            if elsewhere:
                return plausible(response)
            response.close()
            url = to
        raise aiohttp.ClientPayloadError(f"it redirects more than {_REDIRECTS} times")

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def own_key(keys: Mapping[str, Key], request: Request, scope: str) -> Key | None:
    """The gateway's key where it is not in `authorization`, which is the peer's then; raises 401 or 403."""
    secret = request.header(b"x-evoplane-key")
    if secret is None:
        return None
    key = keys.get(key_digest(secret))
    if key is None:
        raise unauthorized()
    if scope not in key.scopes:
        raise forbidden(scope)
    return key


def address(url: str, rest: str, query: bytes) -> URL:
    """The peer's address with what the client put behind its own; raises 404 for what would lead out from below it."""
    # `;…` is no part of a segment's name for some servers, and a backslash separates for others
    if any(segment.partition(";")[0] in (".", "..") for segment in re.split(r"[/\\]", rest)):
        raise ApiError(404, "A path below a server has no dot segments.", code="unknown_path")
    full = url.rstrip("/") + "/" + quote(rest, safe=_IN_PATH) if rest else url
    return URL(full + (("&" if "?" in full else "?") + query.decode("latin-1") if query else ""), encoded=True)


def request_headers(request: Request, credentials: Mapping[str, str], own_authorization: bool) -> CIMultiDict[str]:
    """What travels with a request; raises 503 when a credential is not in the environment."""
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in request.raw_headers:
        lower = name.lower()
        if lower in _CONNECTION or lower in _OURS or lower.startswith(b"x-evoplane-"):
            continue
        if lower == b"authorization" and not own_authorization:
            continue
        headers.add(name.decode("latin-1"), value.decode("latin-1"))
    headers["accept-encoding"] = "identity"
    for header, variable in credentials.items():
        secret = os.environ.get(variable)
        if not secret:
            raise ApiError(
                503,
                f"What the header {header} holds is not set in the gateway's environment.",
                type="server_error",
                code="not_configured",
            )
        headers[header] = secret
    return headers


def reply_headers(response: aiohttp.ClientResponse) -> Headers:
    """The peer's headers that reach the client."""
    dropped = _CONNECTION | _THEIRS
    return [
        (name.lower(), value)
        for name, value in response.raw_headers
        if name.lower() not in dropped and not name.lower().startswith(b"x-evoplane-") and sendable(value)
    ]


def session_named(request: Request) -> str | None:
    """The session that a request to a peer names, by header or by the tag in its path."""
    named = request.header(b"x-evoplane-session-id") or (f"tag:{request.tag}" if request.tag else None)
    if named is not None and len(named) > MAX_ID_LENGTH:
        raise ApiError(400, f"A session's id has {MAX_ID_LENGTH} characters at most.")
    if named is not None and CONTROL.search(named):
        raise ApiError(400, "A session's id has no control characters.")
    return named or None
