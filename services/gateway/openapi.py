"""The gateway's interface as OpenAPI 3.1, and as the page `docs/api.md`: `python -m services.gateway.openapi`.

Schemas come from the structs that read the requests. What is a provider's own interface (chat, responses, messages,
MCP, …) passes as it is and is described by the provider: here it is only said what the gateway adds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from evoplane import __version__
from services.gateway.feedback import Feedback
from services.gateway.rl import Export, SetReward, StartSession
from services.proxy.dialects import DIALECTS
from services.proxy.reports import Reported

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"
PAGE = FILE.with_name("api.md")

_REPLY_HEADERS = {
    "x-evoplane-event-id": "The event this call is recorded as.",
    "x-evoplane-session-id": "The session it belongs to: what feedback may name.",
    "x-evoplane-agent-version": "The version that answered.",
    "x-evoplane-overhead-ms": "Time spent in the gateway.",
}
_REQUEST_HEADERS = {
    "x-evoplane-session-id": "Names the session; without it the gateway finds it by what was said.",
    "x-evoplane-agent-version": "Pins a version: for keys with the scope `operate`.",
}


class Endpoint(NamedTuple):
    method: str
    path: str
    summary: str
    scope: str
    """What the key must be allowed; empty: no key is asked for."""
    body: type | None = None
    many: bool = False
    """May the body be a list too?"""
    answers: tuple[tuple[int, str], ...] = ((200, "As the provider answers."),)


_PASSES = ((200, "The provider's answer, byte for byte; streamed when it streams."),)

ENDPOINTS = (
    *(
        Endpoint("post", f"/v1{path}", f"{dialect.name}: passes through, is recorded", "infer", answers=_PASSES)
        for path, dialect in DIALECTS.items()
    ),
    Endpoint("post", "/v1/messages/count_tokens", "Passes through", "infer", answers=_PASSES),
    Endpoint("post", "/v1/embeddings", "Passes through, is recorded", "infer", answers=_PASSES),
    Endpoint("get", "/v1/models", "The model names this key may ask for", "infer", answers=((200, "A list."),)),
    Endpoint("post", "/v1/feedback", "What came of an answer: one signal or a list", "feedback", Feedback, True,
             ((202, "Durable: ids, and whether each target is known yet."),)),
    Endpoint("post", "/v1/feedback/webhooks/{source}", "A signed message of a system in `[webhooks.…]`", "",
             answers=((202, "Durable."), (401, "The signature is wrong."))),
    Endpoint("post", "/v1/approvals/mlflow", "MLflow's webhook: a person tagged a model version", "",
             answers=((202, "What came of it."), (401, "The signature is wrong."))),
    Endpoint("post", "/v1/events", "Steps that no model call shows: one or a list", "feedback", Reported, True,
             ((202, "Durable: the events' ids."),)),
    Endpoint("post", "/v1/sessions/{session_id}/end", "Close a session's trajectory", "feedback",
             answers=((200, "Closed."), (404, "No such open session."))),
    Endpoint("post", "/v1/traces", "OTLP spans, protobuf or JSON; they join the captured calls", "feedback",
             answers=((200, "OTLP's own answer, rejected spans counted."),)),
    Endpoint("post", "/mcp/{server}", "A tool server of `[mcp.…]` over streamable HTTP", "infer", answers=_PASSES),
    Endpoint("post", "/a2a/{agent}", "Another agent of `[a2a.…]` over JSON-RPC", "infer", answers=_PASSES),
    Endpoint("post", "/rl/start_session", "AReaL: begin a session, get a key for it", "infer", StartSession,
             answers=((200, "The session's key."),)),
    Endpoint("post", "/rl/set_reward", "AReaL: reward the session or one interaction", "infer", SetReward,
             answers=((200, "Kept beside earlier ones."),)),
    Endpoint("post", "/rl/end_session", "AReaL: end a session", "infer", answers=((200, "Ended."),)),
    Endpoint("post", "/export_trajectories", "AReaL: interactions with token ids, until acknowledged", "infer", Export,
             answers=((200, "Interactions and a cursor."),)),
    Endpoint("get", "/agents/{agent}/route", "What this gateway serves now", "operate",
             answers=((200, "Champion, previous, canary, shadow and their digests."), (404, "No such route."))),
    Endpoint("get", "/openapi.json", "This description", "", answers=((200, "OpenAPI 3.1."),)),
    Endpoint("get", "/healthz", "Is the process alive?", "", answers=((200, "It is."),)),
    Endpoint("get", "/readyz", "Would an answer given now be recorded?", "",
             answers=((200, "It would."), (503, "Nothing could be made durable; says why."))),
    Endpoint("get", "/metrics", "Prometheus", "", answers=((200, "Text format 0.0.4."),)),
)  # fmt: skip

_REFUSALS = {
    "400": "Malformed: the message names the field.",
    "401": "No key, or an unknown or revoked one.",
    "403": "The key lacks the scope.",
    "413": "The body is larger than `gateway.max_body_bytes`.",
    "429": "A budget or rate limit of the tenant or key is used up; `retry-after` says when.",
    "503": "The event log can't be made durable (`event_log_unavailable`: nothing was done), or what was answered could"
    " not be redacted and its tenant refuses that (`redaction_failed`: the model was asked).",
}


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    structs = [e.body for e in ENDPOINTS if e.body is not None]
    bodies, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(structs, bodies, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method] = _operation(endpoint, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Evoplane gateway", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "`evoplane key create`"}},
        },
    }


def render() -> str:
    """The text of the file."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def page() -> str:
    """The document as a page a person reads."""
    lines = [
        "# The gateway's interface",
        "",
        "Made by `python -m services.gateway.openapi`, as is [openapi.json](openapi.json), which a running gateway",
        "serves. The key is a bearer token (Anthropic's `x-api-key` is taken too); its scopes say what it may do.",
        "",
        "| | path | scope | what | answers |",
        "|---|---|---|---|---|",
    ]
    for e in ENDPOINTS:
        told = "; ".join(f"{status} {text}" for status, text in e.answers)
        lines.append(f"| {e.method.upper()} | `{e.path}` | {e.scope or '–'} | {e.summary} | {told} |")
    lines += ["", "Every call with a key may also be answered by:", "", "| status | means |", "|---|---|"]
    lines += [f"| {status} | {text} |" for status, text in _REFUSALS.items()]
    lines += ["", "Errors have the form of the dialect that was called. Replies to model calls carry:", ""]
    lines += [f"- `{name}`: {text}" for name, text in _REPLY_HEADERS.items()]
    lines += ["", "and requests may carry:", ""]
    lines += [f"- `{name}`: {text}" for name, text in _REQUEST_HEADERS.items()]
    for name, schema in document()["components"]["schemas"].items():
        if name in {e.body.__name__ for e in ENDPOINTS if e.body is not None}:
            lines += ["", f"## {name}", "", "| field | type | needed | |", "|---|---|---|---|"]
            needed = schema.get("required", [])
            lines += [
                f"| `{field}` | {_type(about)} | {'yes' if field in needed else ''} | {about.get('description', '')} |"
                for field, about in schema.get("properties", {}).items()
            ]
    return "\n".join(lines) + "\n"


def _operation(endpoint: Endpoint, schema_of: dict[type, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    parameters = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names]
    answers: dict[str, Any] = {str(status): {"description": text} for status, text in endpoint.answers}
    if endpoint.answers is _PASSES:
        parameters += [
            {"name": n, "in": "header", "schema": {"type": "string"}, "description": text}
            for n, text in _REQUEST_HEADERS.items()
        ]
        answers["200"]["headers"] = {
            n: {"description": text, "schema": {"type": "string"}} for n, text in _REPLY_HEADERS.items()
        }
    operation: dict[str, Any] = {"summary": endpoint.summary, "responses": answers}
    if endpoint.scope:
        operation["security"] = [{"key": [endpoint.scope]}]
        answers.update({status: {"description": text} for status, text in _REFUSALS.items() if status not in answers})
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        one = schema_of[endpoint.body]
        schema = {"oneOf": [one, {"type": "array", "items": one, "minItems": 1}]} if endpoint.many else one
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    elif endpoint.method == "post":
        operation["requestBody"] = {"content": {"application/json": {}}}
    return operation


def _type(about: dict[str, Any]) -> str:
    kinds = about.get("anyOf", [about])
    names = [k.get("type") or str(k.get("$ref", "any")).rpartition("/")[2] for k in kinds if k.get("type") != "null"]
    return " or ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    FILE.write_text(render())
    PAGE.write_text(page())
    sys.stdout.write(f"{FILE}\n{PAGE}\n")
