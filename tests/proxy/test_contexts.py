"""A call's context says what it was decided under, and making it again is cheap."""

from __future__ import annotations

from typing import Any

from registry.manifest import AgentVersion, Manifest, Policy
from services.proxy.contexts import ContextBook


def version(agent: str) -> AgentVersion:
    manifest = Manifest(policy=Policy(base="m", served_name="m"))
    return AgentVersion(agent=agent, version="1", digest=manifest.digest, manifest=manifest)


def tool(number: int, text: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"t{number}", "description": text}}


def test_two_agents_with_equal_versions_have_contexts_of_their_own() -> None:
    book = ContextBook()
    names = [book.context("a", version(agent), "vllm", None, []) for agent in ("one", "two")]
    assert [context.body.harness.name for context, _ in names] == ["one", "two"]


def test_tools_that_change_with_every_request_do_not_fill_the_memory() -> None:
    book = ContextBook()
    for number in range(1000):
        book.context("a", version("one"), "vllm", None, [tool(number)])
    assert len(book._made) <= 256
    large = tool(0, "x" * 1_000_000)
    first, _ = book.context("a", version("one"), "vllm", None, [large])
    assert book.context("a", version("one"), "vllm", None, [large])[0] is first
    assert all(len(str(key)) < 1000 for key in book._made)
