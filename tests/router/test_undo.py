"""Whatever a version changes in a request can be taken back to the byte."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.manifest import Harness, Manifest, PromptEdit
from services.proxy.dialects import DIALECTS, Dialect
from services.router.overlays import NotApplied, apply_overlays, undo
from tests.captures import captures, needs_captures
from tests.router.making import item, manifest, manifests

_TOOL = {"type": "object", "properties": {"city": {"type": "string"}, "a": True}}
_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/chat/completions", {"messages": [{"role": "user", "content": "hello order"}]}),
    ("/chat/completions", {"messages": [{"role": "system", "content": None}, {"role": "user", "content": "hello"}]}),
    ("/chat/completions", {"messages": [{"role": "system"}, {"role": "user", "content": "hello"}], "max_tokens": 3}),
    ("/chat/completions", {"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be short."}]},
        {"role": "user", "content": [{"type": "text", "text": "the weather"}]}], "max_completion_tokens": None,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": _TOOL, "strict": True}}, 7]}),
    ("/chat/completions", {"messages": []}),
    ("/responses", {"input": "hello", "instructions": None, "temperature": 1}),
    ("/responses", {"input": [{"role": "developer", "content": "You are the order"}, {"role": "user",
        "content": "file"}], "tools": [{"type": "function", "name": "f", "description": None, "parameters": _TOOL}]}),
    ("/messages", {"system": [{"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "order"}], "tools": [{"name": "f", "input_schema": _TOOL}]}),
    ("/messages", {"messages": [{"role": "user", "content": "order"}], "system": "Answer the order"}),
    ("/completions", {"prompt": "hello the order"}),
    ("/completions", {"prompt": [1, 2]}),
]  # fmt: skip


def taken_back(request: dict[str, Any], version: Manifest, dialect: Dialect) -> None:
    before = orjson.dumps(request)
    sent, overlays = apply_overlays(request, version, "t", dialect=dialect)
    assert orjson.dumps(request) == before, "the client's request was changed"
    if sent is not request:
        assert any("skipped" not in overlay for overlay in overlays)
    stored = orjson.loads(orjson.dumps(overlays))
    assert orjson.dumps(undo(sent, stored)) == before


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.sampled_from(_REQUESTS), manifests(["f"]))
def test_undo_gives_back_what_the_client_sent(asked: tuple[str, dict[str, Any]], version: Manifest) -> None:
    path, request = asked
    taken_back(request, version, DIALECTS[path])


@needs_captures
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_undo_gives_back_what_recorded_clients_sent(data: st.DataObject) -> None:
    recorded = [c for c in captures() if c.dialect_path in DIALECTS and isinstance(c.body, dict)]
    capture = data.draw(st.sampled_from(recorded))
    dialect = DIALECTS[capture.dialect_path]
    taken_back(capture.body, data.draw(manifests(list(dialect.tools(capture.body)))), dialect)


def test_a_request_that_no_overlay_was_applied_to_is_told_apart() -> None:
    edits = (PromptEdit(id="e", op="replace", old="short", text="long"),)
    version = manifest(harness=Harness(edits=edits), memory=(item("12 months."),))
    asked = {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "the warranty?"}]}
    sent, overlays = apply_overlays(asked, version, "t")
    assert sent["messages"][0]["content"] == "Be long.\nNotes:\n- 12 months."
    with pytest.raises(NotApplied):
        undo(asked, overlays)
