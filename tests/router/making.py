"""Manifests and requests, written short; random ones for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from registry.manifest import (
    Guardrail,
    Harness,
    Manifest,
    MemoryItem,
    Policy,
    PromptEdit,
    Retrieval,
    Skill,
    ToolOverlay,
)

POLICY = Policy(base="m", served_name="m")


def manifest(**given: Any) -> Manifest:
    return Manifest(policy=POLICY, **given)


def item(text: str, topic: str = "warranty", tenant: str = "t", **given: Any) -> MemoryItem:
    given = {"trust": "vetted", "id": f"mem_{text}", "created_at": "1", **given}
    return MemoryItem(tenant=tenant, topic=topic, text=text, **given)


_text = st.text(max_size=20)
_words = st.sampled_from(["Be short.", "You are", "the", "order", "", "Answer", "a", " "])


def _edits() -> st.SearchStrategy[PromptEdit]:
    return st.builds(PromptEdit, id=_text, op=st.sampled_from(["add", "replace", "delete"]), old=_words, text=_text)


def _tools(names: list[str]) -> st.SearchStrategy[ToolOverlay]:
    patch = st.dictionaries(
        st.sampled_from(["description", "enum", "pattern", "minLength", "maximum", "examples"]),
        st.one_of(_text, st.lists(_text, min_size=1, max_size=2), st.integers(0, 9)),
        max_size=2,
    )
    return st.builds(
        ToolOverlay,
        name=st.sampled_from([*names, "none"]),
        description=_text,
        hint=_text,
        arguments=st.dictionaries(st.sampled_from(["city", "query", "path", "a", "b", "file_path"]), patch, max_size=2),
    )


def manifests(names: list[str]) -> st.SearchStrategy[Manifest]:
    """Any version of an agent with these tools, some of it beside the point."""
    topics = st.sampled_from(["the weather", "order", "hello", "file"])
    few: dict[str, Any] = {"max_size": 3}
    return st.builds(
        Manifest,
        policy=st.just(POLICY),
        harness=st.builds(
            Harness,
            system_append=_text,
            edits=st.lists(_edits(), **few).map(tuple),
            params=st.dictionaries(
                st.sampled_from(["temperature", "max_tokens", "stop", "messages", "seed"]), st.integers(0, 9), **few
            ),
        ),
        memory=st.lists(st.builds(item, _text, topic=topics, tenant=st.sampled_from(["t", "u"])), **few).map(tuple),
        retrieval=st.builds(Retrieval, items=st.integers(0, 3), overlap=st.floats(0, 1)),
        skills=st.lists(
            st.builds(Skill, id=_text, name=_text, when=topics, steps=st.lists(_text, **few).map(tuple)), **few
        ).map(tuple),
        tools=st.lists(_tools(names), **few).map(tuple),
        guardrails=st.lists(st.builds(Guardrail, id=_text, text=_text), **few).map(tuple),
    )
