"""What each surface of a version does to a request, in every dialect, and what it may not do."""

from __future__ import annotations

from typing import Any

import pytest

from registry.manifest import Guardrail, Harness, Manifest, PromptEdit, Retrieval, Skill, ToolOverlay
from services.proxy.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect
from services.router.overlays import apply_overlays, undo
from tests.router.making import item, manifest

SYSTEM = "You help. Never give refunds. Be short."


def asked(dialect: Dialect, text: str = "the warranty?", system: str = SYSTEM, **given: Any) -> dict[str, Any]:
    """The same request in each dialect."""
    said = {"role": "user", "content": text}
    if dialect is RESPONSES:
        return {"instructions": system, "input": [said], **given}
    if dialect is MESSAGES:
        return {"system": [{"type": "text", "text": system}], "messages": [said], **given}
    if dialect is COMPLETIONS:
        return {"prompt": text, **given}
    return {"messages": [{"role": "system", "content": system}, said], **given}


def told(dialect: Dialect, request: dict[str, Any]) -> str:
    """The system text the model gets."""
    if dialect is RESPONSES:
        return str(request["instructions"])
    if dialect is MESSAGES:
        return "".join(block["text"] for block in request["system"])
    return str(request["prompt"] if dialect is COMPLETIONS else request["messages"][0]["content"])


def change(request: dict[str, Any], version: Manifest, dialect: Dialect = CHAT, **given: Any) -> tuple[Any, list[Any]]:
    result, overlays = apply_overlays(request, version, "t", dialect=dialect, **given)
    assert undo(result, overlays) == request
    return result, overlays


INSTRUCTED = pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda d: d.name)


@INSTRUCTED
def test_prompt_edits_apply_in_order_and_before_anything_is_appended(dialect: Dialect) -> None:
    edits = (
        PromptEdit(id="1", op="replace", old="Never give refunds.", text="Refund up to 20 euros."),
        PromptEdit(id="2", op="delete", old=" Be short."),
        PromptEdit(id="3", op="replace", old="up to 20", text="up to 50"),
        PromptEdit(id="4", op="add", text="Say your name."),
    )
    version = manifest(
        harness=Harness(edits=edits, system_append=" (v2)"),
        guardrails=(Guardrail(id="g", text="No politics."),),
        skills=(Skill(id="s", name="warranty", when="warranty", steps=("Look it up.",)),),
        memory=(item("It is 12 months."),),
    )
    result, overlays = change(asked(dialect), version, dialect)
    assert told(dialect, result) == (
        "You help. Refund up to 50 euros.\nSay your name. (v2)\nRules:\n- No politics."
        "\nProcedure (warranty):\n1. Look it up.\nNotes:\n- It is 12 months."
    )
    surfaces = [overlay["surface"] for overlay in overlays]
    assert surfaces == ["harness"] * 5 + ["guardrails", "skills", "memory"]
    assert all(overlay["digest"].startswith("sha256:") for overlay in overlays)


def test_a_text_completion_gets_it_before_the_prompt_and_its_prompt_is_not_edited() -> None:
    edits = (PromptEdit(id="1", op="delete", old="warranty"),)
    version = manifest(harness=Harness(edits=edits), memory=(item("It is 12 months."),))
    result, overlays = change(asked(COMPLETIONS), version, COMPLETIONS)
    assert result["prompt"] == "Notes:\n- It is 12 months.\n\nthe warranty?"
    assert overlays[0]["skipped"]
    assert change({"prompt": [1, 2]}, version, COMPLETIONS)[0] == {"prompt": [1, 2]}


@INSTRUCTED
def test_an_edit_whose_words_are_not_there_is_skipped_and_recorded_and_the_bytes_stay(dialect: Dialect) -> None:
    edits = (
        PromptEdit(id="1", op="replace", old="Always", text="Sometimes"),
        PromptEdit(id="2", op="delete", old="warranty"),  # the user's word, not an instruction
    )
    request = asked(dialect)
    result, overlays = change(request, manifest(harness=Harness(edits=edits)), dialect)
    assert result is request
    assert [(o["edit"], o["skipped"]) for o in overlays] == [
        (id, "the instructions do not have these words") for id in ("1", "2")
    ]
    assert not any("text" in o for o in overlays), "what was not shown is not told as shown"


@INSTRUCTED
def test_tools_get_better_words_and_narrower_bounds(dialect: Dialect) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 9}}}
    flat = {"name": "weather", "description": "Weather.", "parameters": schema}
    if dialect is MESSAGES:
        flat = {"name": "weather", "description": "Weather.", "input_schema": schema}
    sent = {"type": "function", "function": flat} if dialect is CHAT else flat
    overlay = ToolOverlay(
        name="weather",
        hint="Not for the past.",
        arguments={
            "city": {"description": "With its country.", "examples": ["Oslo, Norway"]},
            "days": {"maximum": 14},
            "when": {"type": "string"},
        },
    )
    other = ToolOverlay(name="none", hint="x")
    result, overlays = change(asked(dialect, tools=[sent]), manifest(tools=(overlay, other)), dialect)
    tool = result["tools"][0]["function"] if dialect is CHAT else result["tools"][0]
    assert tool["description"] == "Weather. Not for the past."
    changed = tool["input_schema" if dialect is MESSAGES else "parameters"]["properties"]
    assert changed["city"]["description"] == "With its country."
    assert changed["days"] == {"type": "integer", "maximum": 9}
    assert [(o.get("argument"), o["skipped"]) for o in overlays if "skipped" in o] == [
        ("days", "'maximum' of 14 is wider than the client's 9"),
        ("when", "the client's schema has no such argument"),
        (None, "the client sent no such tool"),
    ]


def test_params_go_by_the_dialects_names_and_nothing_but_params_is_set() -> None:
    version = manifest(harness=Harness(params={"max_tokens": 5, "temperature": 0, "messages": [], "model": "x"}))
    for dialect, name in ((CHAT, "max_tokens"), (RESPONSES, "max_output_tokens"), (MESSAGES, "max_tokens")):
        result, _ = change(asked(dialect, temperature=1), version, dialect)
        assert (result[name], result["temperature"]) == (5, 0)
        assert "model" not in result
        assert result.get("messages") != []
    result, _ = change(asked(CHAT, max_completion_tokens=9), version)
    assert result["max_completion_tokens"] == 5
    assert "max_tokens" not in result


def test_what_is_added_is_bounded_but_for_the_operators_rules() -> None:
    version = manifest(
        harness=Harness(edits=(PromptEdit(id="1", op="add", text="x" * 50),)),
        guardrails=(Guardrail(id="g", text="y" * 100),),
        memory=(item("z" * 50),),
    )
    request = asked(CHAT)
    result, overlays = change(request, version, max_total=100)
    assert [("skipped" in o, o["surface"]) for o in overlays] == [
        (False, "harness"),
        (False, "guardrails"),
        (True, "memory"),
    ]
    assert "y" * 100 in told(CHAT, result)
    assert "z" * 50 not in told(CHAT, result)


def test_skills_are_chosen_as_memory_is_and_no_tenants_go_to_another() -> None:
    mine = Skill(id="a", name="mine", when="cancel order", steps=("One.",), tenant="t", trust="vetted", created_at="1")
    others = Skill(id="b", name="others", when="cancel order", steps=("Two.",), tenant="u", trust="vetted")
    newer = Skill(id="c", name="newer", when="cancel order", steps=("Three.",), created_at="2")
    version = manifest(skills=(newer, others, mine))
    result, (overlay,) = change(asked(CHAT, "Please cancel my order."), version)
    assert told(CHAT, result) == f"{SYSTEM}\nProcedure (mine):\n1. One."
    assert overlay["items"] == [{"id": "a", "trust": "vetted", "provenance": []}]
    both = manifest(skills=(newer, others, mine), retrieval=Retrieval(skills=5))
    assert told(CHAT, change(asked(CHAT, "cancel"), both)[0]).endswith(
        "Procedure (mine):\n1. One.\nProcedure (newer):\n1. Three."
    )
    assert change(asked(CHAT, "Where is it?"), version)[1] == []


def test_a_version_says_how_much_of_a_topic_a_message_must_have() -> None:
    memory = (item("It is free from 40 euros.", "free shipping minimum order"),)
    request = asked(CHAT, "shipping?")
    assert change(request, manifest(memory=memory))[1] == []
    assert change(request, manifest(memory=memory, retrieval=Retrieval(overlap=0.25)))[1] != []
    assert change(request, manifest(memory=memory, retrieval=Retrieval(overlap=0.25, items=0)))[1] == []


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


TEXT, RESULT = {"type": "text", "text": "a"}, {"type": "tool_result", "tool_use_id": "c", "content": "b"}


@pytest.mark.parametrize(
    ("dialect", "request_", "said"),
    [
        (CHAT, {"messages": [user(TEXT), {"role": "assistant", "content": "b"}]}, "a"),
        (CHAT, {"messages": [user(TEXT, {"type": "image_url"})]}, "a"),
        (RESPONSES, {"input": [user({"type": "input_text", "text": "a"}), {"type": "function_call_output"}]}, "a"),
        (RESPONSES, {"input": "a"}, "a"),
        (MESSAGES, {"messages": [{"role": "user", "content": "a"}, user(RESULT)]}, "a"),
        (MESSAGES, {"messages": [user(RESULT, TEXT)]}, "a"),
        (COMPLETIONS, {"prompt": ["a"]}, ""),
        (CHAT, {"messages": None}, ""),
    ],
)
def test_the_users_last_words_are_found_in_every_form(dialect: Dialect, request_: dict[str, Any], said: str) -> None:
    assert dialect.last_user_text(request_) == said
