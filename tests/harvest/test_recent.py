"""What is remembered of a trajectory's events: enough to read the next ones with, and bounded."""

from __future__ import annotations

from services.proxy.harvest import harvest
from services.proxy.harvest.recent import RecentEvents, remembered
from tests.harvest.making import answer, tool, user, words


def test_the_next_message_is_read_the_same_after_a_remembered_history_as_after_the_whole() -> None:
    history = [
        user("Where is it?"),
        answer("", ("find", {"id": "A-1"}), history=[words("user", "Where is it?")]),
        tool("find", {"id": "A-1"}, {"day": "2026-03-01", "place": "L-77"}),
        answer("It arrives on Monday, 2026-03-02, at L-78."),
    ]
    new = [user("That's wrong, it was Tuesday."), answer("Sorry: 2026-03-01 at L-77.")]
    found = harvest(history, new)
    assert found
    again = harvest([remembered(event)[0] for event in history], new)
    assert [(each.id, each.label) for each in again] == [(each.id, each.label) for each in found]


def test_a_long_text_is_remembered_by_its_beginning_and_a_request_not_at_all() -> None:
    kept, size = remembered(tool("f", {"q": "x" * 500_000}, ["y" * 500_000]))
    assert 40_000 <= size < 41_000
    assert isinstance(kept.y.result, list)
    assert kept.y.result[0] == "y" * 20_000
    kept, size = remembered(answer("short", history=[words("user", "z" * 500_000)]))
    assert size < 1000
    assert kept.a == answer("short").a


def test_all_trajectories_together_hold_no_more_than_the_bound() -> None:
    recent = RecentEvents(100_000)
    for number in range(50):
        recent.add(f"t{number}", [user("w" * 15_000)])
        assert recent.size <= 100_000
    assert recent.of("t49")
    assert not recent.of("t0")
    recent.add("t49", [user("w" * 15_000) for _ in range(100)])
    assert recent.size <= 100_000
    assert len(recent.of("t49")) >= 5


def test_what_can_not_be_written_as_json_is_remembered_without_its_content() -> None:
    event = tool("f", {"q": "\ud800"}, "fine")
    kept, size = remembered(event)
    assert (kept.id, kept.kind, kept.y.status, size) == (event.id, "tool_call", "ok", 0)
