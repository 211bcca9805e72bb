"""The ASGI application: a table of routes over plain ASGI, and nothing between them and the handlers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec

from evoplane.settings import Settings, SettingsError
from services.gateway import traces_out
from services.gateway.a2a import a2a
from services.gateway.approvals import mlflow_approval
from services.gateway.asgi import (
    MAX_DEPTH,
    ClientGone,
    Message,
    Receive,
    Request,
    Scope,
    Send,
    respond,
    respond_error,
    respond_json,
)
from services.gateway.core import Gateway
from services.gateway.embeddings import count_tokens, embeddings
from services.gateway.errors import ApiError, internal, too_deep
from services.gateway.events import end_session, events
from services.gateway.feedback import feedback
from services.gateway.inference import infer
from services.gateway.mcp import mcp
from services.gateway.rl import export_trajectories, rl
from services.gateway.traces import traces
from services.gateway.webhooks import webhook
from services.gateway.websocket import serve_websocket
from services.proxy.dialects import CHAT, DIALECTS, Dialect
from services.proxy.engines.base import StorageFailed

_log = logging.getLogger(__name__)

Handler = Callable[[Gateway, Request, Send], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_STALE_S = 5.0
"""Keys and pointers older than this are worth a word to whoever asks."""

_EPOCH = "1970-01-01T00:00:00Z"
"""Nobody knows when a model was made."""

_TEXT = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)


def create_app(
    settings: Settings, *, token_capture: bool = True, on_wrong: Callable[[SettingsError], None] | None = None
) -> Application:
    """The gateway. `token_capture` is for upstreams that are our worker: token ids are asked for and kept.

    `on_wrong` is told of settings that turn out to be wrong when it starts; without it, the log is.
    """
    gateway = Gateway(settings, token_capture=token_capture)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(gateway, receive, send, on_wrong)
        elif scope["type"] == "http":
            await _serve(gateway, Request(scope, receive), send)
        elif scope["type"] == "websocket":
            path = _path(Request({**scope, "method": "GET"}, receive))
            await serve_websocket(gateway, scope, receive, send, path)

    return app


async def _serve(gateway: Gateway, request: Request, send: Send) -> None:
    status = 0

    async def counting(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    path = _path(request)
    dialect = _dialect(path)
    gateway.metrics.in_flight += 1
    try:
        await _route(gateway, request, path, counting)
    except ApiError as error:
        await respond_error(counting, error, dialect=dialect)
    except ClientGone:
        pass
    except Exception as error:
        _log.exception("%s %s failed", request.method, request.path)
        if status == 0:
            answer = too_deep(MAX_DEPTH) if isinstance(error, RecursionError) else internal()
            await respond_error(counting, answer, dialect=dialect)
        else:
            raise
    finally:
        gateway.metrics.in_flight -= 1
        gateway.metrics.responses[path if path in _KNOWN else "other", status] += 1


def _path(request: Request) -> str:
    """The path without `/s/<tag>`, which marks a session, and without `/v1`, however often a base URL has it."""
    path = request.path
    if path.startswith("/s/"):
        request.tag, _, path = path[3:].partition("/")
        path = f"/{path}"
    while path == "/v1" or path.startswith("/v1/"):
        path = path[3:]
    return path.rstrip("/")


def _dialect(path: str) -> Dialect:
    """Whose form errors have at a path."""
    return next((each for known, each in DIALECTS.items() if path == known or path.startswith(f"{known}/")), CHAT)


async def _route(gateway: Gateway, request: Request, path: str, send: Send) -> None:
    if path in DIALECTS:
        _require(request, "POST")
        await infer(gateway, request, send, DIALECTS[path])
    elif path in _ROUTES:
        method, handler = _ROUTES[path]
        _require(request, method)
        await handler(gateway, request, send)
    elif (prefix := next((each for each in _BELOW if path.startswith(each)), None)) is not None:
        await _BELOW[prefix](gateway, request, send, path.removeprefix(prefix))
    elif path in _PROBES and request.method in ("GET", "HEAD"):
        await _PROBES[path](gateway, request, send)
    elif request.method == "GET" and path.startswith("/agents/") and path.endswith("/route"):
        await _agent_route(gateway, request, send, path.removeprefix("/agents/").removesuffix("/route"))
    elif request.method == "POST" and path.startswith("/sessions/") and path.endswith("/end"):
        await end_session(gateway, request, send, path.removeprefix("/sessions/").removesuffix("/end"))
    else:
        raise ApiError(404, f"Unknown request URL: {request.method} {request.path}.", code="unknown_url")


def _require(request: Request, method: str) -> None:
    if request.method not in (method, "HEAD" if method == "GET" else method):
        raise ApiError(405, f"Use {method} for {request.path}.", code="method_not_allowed")


async def _models(gateway: Gateway, request: Request, send: Send) -> None:
    key = gateway.authenticate(request, "infer")
    names = gateway.listed(key)
    if request.header(b"anthropic-version") is not None:
        data = [{"type": "model", "id": name, "display_name": name, "created_at": _EPOCH} for name in names]
        answer = {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}
    else:
        listed = [{"id": name, "object": "model", "created": 0, "owned_by": "evoplane"} for name in names]
        answer = {"object": "list", "data": listed}
    await respond_json(send, 200, answer)


async def _agent_route(gateway: Gateway, request: Request, send: Send, agent: str) -> None:
    """What this gateway serves now: the proof that a promotion or rollback has arrived."""
    gateway.authenticate(request, "operate")
    route = gateway.control.picture.routes.get(agent)
    if route is None:
        raise ApiError(404, f"Agent {agent!r} has no route.", code="route_not_found")
    known = gateway.control.picture.versions.get(agent, {})
    labels = {label for label in (route.champion, route.previous, route.canary, route.shadow) if label is not None}
    served = {label: known[label].digest for label in sorted(labels) if label in known}
    await respond_json(send, 200, {**msgspec.to_builtins(route), "versions": served})


async def _alive(gateway: Gateway, request: Request, send: Send) -> None:
    await respond_json(send, 200, {"status": "ok"})


async def _ready(gateway: Gateway, request: Request, send: Send) -> None:
    """Ready means that an answer given now would be recorded."""
    counters = gateway.store.counters
    ready = counters.state != "refusing"
    detail = {"status": "ok" if ready else "unavailable", "event_log": counters.state, "reason": counters.failure}
    if (age := gateway.control.age_s) > _STALE_S:
        detail["control_age_s"] = f"{age:.1f}"
    await respond_json(send, 200 if ready else 503, detail, () if ready else ((b"retry-after", b"1"),))


async def _openapi(gateway: Gateway, request: Request, send: Send) -> None:
    from services.gateway.openapi import document  # asked for once in a while

    await respond_json(send, 200, document())


async def _metrics(gateway: Gateway, request: Request, send: Send) -> None:
    control = gateway.control
    text = gateway.metrics.render(
        gateway.store.counters,
        gateway.shadow,
        len(gateway.sessions),
        control.picture.routes,
        control.age_s,
        traces_out.read(gateway.settings.var),
    )
    await respond(send, 200, text.encode(), _TEXT)


_ROUTES: dict[str, tuple[str, Handler]] = {
    "/approvals/mlflow": ("POST", mlflow_approval),
    "/embeddings": ("POST", embeddings),
    "/feedback": ("POST", feedback),
    "/messages/count_tokens": ("POST", count_tokens),
    "/events": ("POST", events),
    "/traces": ("POST", traces),
    "/export_trajectories": ("POST", export_trajectories),
    "/models": ("GET", _models),
}
"""Paths with and without `/v1` before them."""

_BELOW: dict[str, Callable[[Gateway, Request, Send, str], Awaitable[None]]] = {
    "/mcp/": mcp,
    "/a2a/": a2a,
    "/feedback/webhooks/": webhook,
    "/rl/": rl,
}
"""What is below a path; the handler gets the rest of it, and looks at the method itself."""

_PROBES: dict[str, Handler] = {
    "": _alive, "/healthz": _alive, "/readyz": _ready, "/metrics": _metrics, "/openapi.json": _openapi
}  # fmt: skip
"""Cheap, without a key, and no sessions."""


_KNOWN = {*_ROUTES, *_PROBES, *DIALECTS}
"""Paths that metrics name."""


async def _lifespan(
    gateway: Gateway, receive: Receive, send: Send, on_wrong: Callable[[SettingsError], None] | None
) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                await gateway.start()
            except Exception as error:
                if isinstance(error, SettingsError) and on_wrong is not None:
                    on_wrong(error)
                elif isinstance(error, SettingsError | StorageFailed):
                    _log.error("the gateway can't start: %s", " ".join(str(error).split()))
                else:
                    _log.exception("the gateway can't start")
                await send({"type": "lifespan.startup.failed", "message": ""})
                return
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await gateway.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
