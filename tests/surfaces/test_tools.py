"""Tools: arguments are bounded where calls were rejected and then accepted; hints come where tools are mistaken."""

from __future__ import annotations

import msgspec

from evaluators.cases import Case
from flows.interventions.repairs import constraint
from registry.manifest import ToolOverlay
from tests.evaluators.conftest import make_case
from tests.surfaces.making import (
    applied,
    asked,
    evidence,
    manifest,
    of,
    ordinary,
    propose,
    sent,
    showing,
    step,
    tool,
)

BOOK = tool("book", "Books a table.", day={"type": "string", "description": "The day."}, seats={"type": "integer"})


def booked(n: int, wrong: str, right: str, error: str = "invalid day", argument: str = "day", **given) -> list[Case]:
    """The tool rejects the first call of each session and accepts the second; sessions of two tenants by turns."""
    return [
        make_case(
            f"A table, number {number}",
            reward=1.0,
            calls=[("book", {argument: wrong})],
            tools=[BOOK],
            steps=(
                step("book", "error", error, **{argument: wrong.format(number)}),
                step("book", **{argument: right.format(10 + number)}),
            ),
            **{"tenant": ("northwind", "lumen")[number % 2], **given},
        )
        for number in range(n)
    ]


def test_a_form_that_every_accepted_value_has_becomes_a_pattern_and_an_example_of_nobodys() -> None:
    seen = evidence([*booked(6, "May {}", "2026-05-{}"), *ordinary()])
    (proposal,) = propose("tools", seen)
    version = applied(seen, proposal)
    body = sent(version, asked("a table", tools=[BOOK]))
    day = body["tools"][0]["function"]["parameters"]["properties"]["day"]
    assert day == {
        "type": "string",
        "description": "The day. In the form 1234-12-12.",
        "pattern": r"^\d{4}\-\d{2}\-\d{2}$",
    }
    assert "2026" not in str(proposal.content)


def test_the_values_a_tool_names_become_an_enum() -> None:
    error = "invalid day: must be one of: today, tomorrow"
    seen = evidence([*booked(4, "Monday", "today", error), *ordinary()])
    (proposal,) = propose("tools", seen)
    patch = proposal.content["tools"][0]["arguments"]["day"]
    assert patch["enum"] == ["today", "tomorrow"]


def test_what_one_of_several_tenants_alone_met_tells_the_others_none_of_its_values() -> None:
    error = "invalid day: must be one of: today, tomorrow"
    for told in (booked(4, "Monday", "today", error, tenant="lumen"), booked(6, "x", "LUMEN-{}", tenant="lumen")):
        assert propose("tools", evidence([*told, *ordinary()])) == []
        alone = evidence([*told, *(c for c in ordinary() if c.tenant == "lumen")])
        assert len(propose("tools", alone)) == 1


def test_each_tenant_keeps_its_own_words_about_an_argument_and_reads_none_of_the_others() -> None:
    own = {
        tenant: tool("book", "", day={"type": "string", "description": f"Day at {tenant.upper()} HOUSE."})
        for tenant in ("northwind", "lumen")
    }
    cases = [of(c, tools=[own[c.tenant]]) for c in booked(6, "May {}", "2026-05-{}")]
    seen = evidence([*cases, *ordinary()])
    (proposal,) = propose("tools", seen)
    assert "HOUSE" not in f"{proposal}"
    version = applied(seen, proposal)
    for tenant, sent_by_client in own.items():
        body = sent(version, asked("a table", tools=[sent_by_client]), tenant)
        day = body["tools"][0]["function"]["parameters"]["properties"]["day"]
        assert day["description"] == f"Day at {tenant.upper()} HOUSE. In the form 1234-12-12."


def test_a_value_that_only_one_tenants_tool_names_is_told_to_nobody() -> None:
    errors = {
        "northwind": "invalid day: must be one of: today, tomorrow",
        "lumen": "invalid day: must be one of: today, tomorrow, ZANZIBAR",
    }
    told = [
        of(c, steps=tuple(msgspec.structs.replace(s, text=errors[c.tenant]) if s.failed else s for s in c.steps))
        for c in reversed(booked(6, "Monday", "today"))
    ]
    assert propose("tools", evidence([*told, *ordinary()])) == []
    alike = [
        of(c, steps=tuple(msgspec.structs.replace(s, text=errors["northwind"]) if s.failed else s for s in c.steps))
        for c in told
    ]
    (proposal,) = propose("tools", evidence([*alike, *ordinary()]))
    assert proposal.content["tools"][0]["arguments"]["day"]["enum"] == ["today", "tomorrow"]


def test_a_limit_that_one_of_several_tenants_alone_met_is_not_the_others() -> None:
    told = booked(6, "1{}", "1", "seats must be at most 8", argument="seats", tenant="lumen")
    told = [
        of(c, steps=(step("book", "error", "seats must be at most 8", seats=9 + n), step("book", seats=1 + n % 3)))
        for n, c in enumerate(told)
    ]
    assert propose("tools", evidence([*told, *ordinary()])) == []
    assert len(propose("tools", evidence([*told, *(c for c in ordinary() if c.tenant == "lumen")]))) == 1


def test_a_hint_is_made_of_words_that_more_than_one_tenant_says() -> None:
    cases = [
        of(
            c,
            messages=[
                {"role": "user", "content": f"{c.request} ZANZIBAR merger" if c.tenant == "lumen" else c.request}
            ],
        )
        for c in misrouted(12)
    ]
    (proposal,) = propose("tools", evidence([*cases, *ordinary()]))
    assert "address" in str(proposal.content)
    assert not {"zanzibar", "merger"} & set(f"{proposal}".lower().replace(",", " ").split())


def test_letters_that_all_values_share_are_part_of_the_form_and_numbers_are_not() -> None:
    right = [f"NW-A26{n}" for n in range(10, 16)]
    assert constraint(["A2610", "A2611"], right, []) == ({"pattern": r"^NW\-A\d{4}$"}, "In the form NW-A1234.")
    assert constraint(["x"], [f"{c}{n}" for n, c in enumerate("ABCDEF")], []) == (
        {"pattern": r"^[A-Z]\d$"},
        "In the form A1.",
    )


def test_too_few_sessions_the_same_form_or_a_passing_fault_bound_nothing() -> None:
    assert propose("tools", evidence([*booked(2, "May {}", "2026-05-{}"), *ordinary()])) == []
    assert propose("tools", evidence([*booked(9, "2026-04-1{}", "2026-05-{}"), *ordinary()])) == []
    late = [
        make_case(
            "A table",
            steps=tuple(
                s if not s.failed else type(s)(s.kind, s.name, s.arguments, s.status, "timeout", s.text, s.event_id)
                for s in c.steps
            ),
        )
        for c in booked(9, "May {}", "2026-05-{}")
    ]
    assert propose("tools", evidence([*late, *ordinary()])) == []
    for seed in range(10):
        assert propose("tools", evidence(ordinary(120, failing=0.3, seed=seed))) == []


def test_what_the_clients_schema_does_not_allow_is_said_in_words() -> None:
    narrow = tool("book", "", day={"type": "string", "pattern": "^.{10}$"})
    cases = [
        make_case(c.request, steps=c.steps, tools=[narrow], tenant=c.tenant) for c in booked(6, "May {}", "2026-05-{}")
    ]
    (proposal,) = propose("tools", evidence([*cases, *ordinary()]))
    assert proposal.content["tools"][0]["arguments"]["day"] == {"hint": "In the form 1234-12-12."}


def test_an_argument_that_is_left_out_is_asked_for() -> None:
    cases = [
        make_case(
            f"A table, number {n}",
            tools=[BOOK],
            steps=(step("book", "error", "seats is a required property", day="x"), step("book", day="x", seats=n)),
        )
        for n in range(5)
    ]
    (proposal,) = propose("tools", evidence([*cases, *ordinary()]))
    assert proposal.content["tools"][0]["arguments"] == {"seats": {"hint": "Always give it."}}


def test_bounds_come_from_the_tools_own_words() -> None:
    assert constraint([9, 12], [1, 4], ["seats must be at most 8"]) == ({"maximum": 8}, "At most 8.")
    assert constraint(["four"], [4], []) == ({"type": "integer"}, "Must be of type integer.")
    assert constraint(["New York"], ["new_york", "oslo"], [])[0] == {"pattern": "^[a-z]+(?:[_-][a-z]+)*$"}  # type: ignore[index]
    assert constraint(["x"], ["anything", "Or 2"], []) is None


def misrouted(n: int) -> list[Case]:
    return [
        make_case(
            f"Change the delivery address of A{number}.",
            calls=[("track_order", {"order_id": f"A{number}"})],
            demonstration=showing(("set_address", {"order_id": f"A{number}"})),
            demonstration_id=f"an_{number}",
            tools=[tool("set_address"), tool("track_order", "Tracks.")],
            tenant=("northwind", "lumen")[number % 2],
        )
        for number in range(n)
    ]


def test_a_tool_that_is_called_instead_of_the_one_people_show_gets_a_hint_and_so_does_that() -> None:
    seen = evidence([*misrouted(8), *ordinary()])
    (proposal,) = propose("tools", seen)
    body = sent(
        applied(seen, proposal), asked("Change my address", tools=[tool("set_address"), tool("track_order", "Tracks.")])
    )
    right, wrong = (each["function"]["description"] for each in body["tools"])
    assert right.startswith("Use this for requests about ")
    assert right.endswith(", not track_order.")
    assert wrong.startswith("Tracks. Not for requests about ")
    assert wrong.endswith(": use set_address.")


def test_a_hint_is_not_proposed_twice() -> None:
    cases = [*misrouted(8), *ordinary()]
    seen = evidence(cases)
    version = applied(seen, propose("tools", seen)[0])
    assert propose("tools", evidence(cases, version)) == []
    known = manifest(tools=(ToolOverlay(name="set_address", hint="Old."),))
    again = evidence(cases, known)
    assert applied(again, propose("tools", again)[0]).tools[0].hint.startswith("Old. Use this")


def test_a_confusion_within_what_is_tolerated_is_left_alone() -> None:
    right = [
        make_case(f"Change the delivery address of A{n}.", reward=1.0, calls=[("set_address", {"order_id": f"A{n}"})])
        for n in range(100, 200)
    ]
    assert propose("tools", evidence([*misrouted(3), *right, *ordinary()])) == []
