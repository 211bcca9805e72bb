"""An answer that comes back in the client's own words continues its conversation, and is kept as it was generated."""

from __future__ import annotations

from typing import Any

from atdp import messages
from tests.gateway.conftest import Running, serve, user
from tests.gateway.upstream import call, say

_CALLS = (("call_4711abcd", "get_weather", '{"city": "Paris"}'),)
_TOLD = {
    "role": "assistant",
    "content": "Calling tools:\n[{'id': 'call_4711abcd', 'function': {'name': 'get_weather'}}]",
}
_OBSERVED = user("Observation:\nsunny")
"""As smolagents writes an answer's calls, and what came of them."""


def _trajectories(running: Running) -> int:
    return len(running.reader.trajectories("northwind"))


async def test_tool_calls_told_as_text_continue_the_session_that_made_them(running: Running) -> None:
    running.upstream.scripts += [call(*_CALLS), say("It is sunny.")]
    first = await running.chat([user("Weather in Paris?")])
    second = await running.chat([user("Weather in Paris?"), _TOLD, _OBSERVED])
    kinds = [record["kind"] for record in running.chain(second)[1:]]
    assert kinds == ["user_message", "llm_call", "user_message", "llm_call"]
    stored = running.event(second)["o"]["messages"]
    assert stored["prefix"] == running.event(first)["id"], "what was said before is stored once"
    assert [change["at"] for change in stored["changed"]] == [1]
    sent = running.resolved(second)["o"]["messages"]
    assert [messages.to_openai(message) for message in sent] == [user("Weather in Paris?"), _TOLD, _OBSERVED]
    generated = running.resolved(first)["a"]["messages"][0]["parts"]
    assert [part["name"] for part in generated if part["type"] == "tool_call"] == ["get_weather"]


async def test_a_text_with_something_put_behind_it_continues_its_session(running: Running) -> None:
    running.upstream.scripts += [say("<code>x = 1"), say("done")]
    await running.chat([user("Compute.")])
    told: dict[str, Any] = {"role": "assistant", "content": "<code>x = 1</code>"}
    await running.chat([user("Compute."), told, user("Observation:\nok")])
    assert _trajectories(running) == 1


async def test_another_answer_to_the_same_question_is_another_conversation(running: Running) -> None:
    running.upstream.scripts += [say("It is sunny."), say("Sure.")]
    await running.chat([user("Weather in Paris?")])
    invented: dict[str, Any] = {"role": "assistant", "content": "It rains."}
    await running.chat([user("Weather in Paris?"), invented, user("And now?")])
    assert _trajectories(running) == 2


async def test_each_of_several_conversations_that_began_alike_goes_on_by_its_own_calls(running: Running) -> None:
    ids = ("call_aaaaaaaa", "call_bbbbbbbb")
    running.upstream.scripts += [call((id, "get_weather", "{}")) for id in ids]
    began = [await running.chat([user("Weather?")]) for _ in ids]
    for id, first in reversed(list(zip(ids, began, strict=True))):
        told: dict[str, Any] = {"role": "assistant", "content": f"Calling tools:\n[{{'id': '{id}'}}]"}
        on = await running.chat([user("Weather?"), told, _OBSERVED])
        assert running.event(on)["trajectory_id"] == running.event(first)["trajectory_id"]


async def test_another_key_goes_on_from_nothing_of_the_kind(running: Running) -> None:
    running.upstream.scripts += [call(*_CALLS), say("It is sunny.")]
    await running.chat([user("Weather in Paris?")])
    await running.chat([user("Weather in Paris?"), _TOLD, _OBSERVED], key="lumen")
    assert _trajectories(running) == 1
    assert len(running.reader.trajectories("lumen")) == 1


async def test_it_does_so_after_a_restart(running: Running) -> None:
    running.upstream.scripts += [call(*_CALLS), say("It is sunny.")]
    first = await running.chat([user("Weather in Paris?")])
    await running.stop()
    running.url, *running.server = await serve(running.settings)
    second = await running.chat([user("Weather in Paris?"), _TOLD, _OBSERVED])
    assert running.event(second)["trajectory_id"] == running.event(first)["trajectory_id"]
