"""A recorded conversation as replay sees it: what was said, which actions were taken, and what they came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from atdp import messages as atdp_messages
from atdp.annotations import in_force
from evaluators.cases import Action, Call, action_of
from evaluators.replay.tape import Effect, Recorded, as_text
from evaluators.rewards import DEFAULT_RULE, RewardRule, resolve

Message = dict[str, Any]
"""A chat message in OpenAI's form."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory's main line."""

    id: str
    tenant: str = ""
    agent: str = ""
    messages: Sequence[Message]
    """Everything that was said, the last answer included, as the client sent it (before any overlay)."""
    tools: Sequence[dict[str, Any]] = ()
    params: Mapping[str, Any] = {}
    actions: Sequence[Recorded] = ()
    """The calls that have a result, in order."""
    success: bool | None = None
    task: str = ""
    """The task that was worked on, for environments that have tasks."""
    train_eligible: bool = False
    event_ids: Mapping[int, str] = {}
    """The event of an assistant's message, by its place."""

    def decisions(self) -> list[int]:
        """Places of the assistant's messages that answer a user: where a branch may start."""
        return [
            i
            for i, message in enumerate(self.messages)
            if message.get("role") == "assistant" and i and self.messages[i - 1].get("role") == "user"
        ]

    @property
    def final(self) -> Action | None:
        """The last answer; None when there was none."""
        place = self._last_answer()
        return action_of(self.messages[place]) if place >= 0 else None

    def _last_answer(self) -> int:
        return max((i for i, m in enumerate(self.messages) if m.get("role") == "assistant"), default=-1)

    def user_turns(self, start: int) -> list[tuple[Action, list[Message]]]:
        """After `start`: each time the user spoke, what they answered to and what they said.

        A last word that nobody answered ("Thanks, bye") is no turn: the conversation was over.
        """
        turns: list[tuple[Action, list[Message]]] = []
        for place in range(start + 1, self._last_answer() + 1):
            message, before = self.messages[place], self.messages[place - 1]
            if message.get("role") != "user":
                continue
            if before.get("role") == "user" and turns:
                turns[-1][1].append(message)
            else:
                turns.append((action_of(before), [message]))
        return turns


def from_messages(
    id: str, messages: Sequence[Message], *, effects: Mapping[str, Effect] | None = None, **fields: Any
) -> Recording:
    """A recording of a plain conversation. `effects` says by tool what it may change; a write where it says nothing."""
    actions = [
        Recorded(
            tool=call.name, arguments=call.arguments, result=result, effect=(effects or {}).get(call.name, "write")
        )
        for call, result, _ in called(messages)
    ]
    return Recording(id=id, messages=messages, actions=actions, **fields)


def from_records(
    tenant: str,
    records: Sequence[dict[str, Any]],
    tools_of: Callable[[str], list[dict[str, Any]]],
    effects: Mapping[str, Effect] | None = None,
    rule: RewardRule = DEFAULT_RULE,
) -> Recording | None:
    """The recording of one trajectory's resolved records; None when no model was called.

    The main line is the last call's prompt with its answer. What an event claims about its tool (`replay.effect`)
    counts where `effects` says nothing. Whether it succeeded says `rule`.
    """
    header = next((r for r in records if r["record"] == "trajectory"), {})
    events = [r for r in records if r["record"] == "event"]
    calls = [e for e in events if e["kind"] == "llm_call" and _prompt(e)]
    if not calls:
        return None
    last = calls[-1]
    answers = (last.get("a") or {}).get("messages") or []
    messages = [*_prompt(last), *(atdp_messages.to_openai(a) for a in answers[:1])]
    signals = [r for r in records if r["record"] == "annotation"]
    judged = resolve(signals, rule, events=events).trajectory
    tags = (last.get("m") or {}).get("tags") or {}
    return Recording(
        id=header.get("trajectory_id") or last["trajectory_id"],
        tenant=tenant,
        agent=tags.get("agent") or (header.get("agent") or {}).get("name") or "",
        messages=messages,
        tools=tools_of(last["ctx"]),
        params=(last.get("a") or {}).get("params") or {},
        actions=_actions(messages, events, effects or {}),
        success=None if judged is None else judged.reward > 0.5,
        task=str((header.get("task") or {}).get("id") or ""),
        train_eligible=_eligible([header, *calls, *in_force(signals)]),
        event_ids={len(_prompt(e)): e["id"] for e in calls},
    )


def called(messages: Sequence[Message]) -> list[tuple[Call, str, str]]:
    """The calls with their results and call ids, in the order of the results.

    A repeated call id is answered by the oldest call that has no result yet: it names, it does not identify.
    """
    waiting: list[tuple[str, Call]] = []
    found = []
    for message in messages:
        if message.get("role") == "assistant":
            ids = [str(c.get("id")) for c in message.get("tool_calls") or []]
            waiting += zip(ids, action_of(message).calls, strict=True)
        elif message.get("role") == "tool":
            id = str(message.get("tool_call_id"))
            place = next((i for i, (waits, _) in enumerate(waiting) if waits == id), None)
            if place is not None:
                found.append((waiting.pop(place)[1], as_text(message.get("content")), id))
    return found


def _actions(
    messages: Sequence[Message], events: Sequence[dict[str, Any]], effects: Mapping[str, Effect]
) -> list[Recorded]:
    claims: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        call_id = (event.get("a") or {}).get("call_id")
        if call_id is not None:
            claims.setdefault(str(call_id), []).append(event)
    out = []
    for call, result, id in called(messages):
        event = claims[id].pop(0) if claims.get(id) else {}
        claimed = (event.get("replay") or {}).get("effect", "write")
        out.append(
            Recorded(
                tool=call.name,
                arguments=call.arguments,
                result=result,
                status=(event.get("y") or {}).get("status", "ok"),
                effect=effects.get(call.name, claimed),
                event_id=event.get("id", ""),
            )
        )
    return out


def _prompt(event: dict[str, Any]) -> list[Message]:
    said = (event.get("o") or {}).get("messages") or []
    return [atdp_messages.to_openai(m) for m in said] if isinstance(said, list) else []


def _eligible(records: Sequence[dict[str, Any]]) -> bool:
    from atdp.eligibility import eligible

    return eligible(records, "train")
