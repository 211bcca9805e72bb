"""What came with a request: the user messages and tool results since the last answer, as events of their own."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from msgspec import UNSET, convert

from atdp import messages
from atdp.ids import derived_id
from atdp.records import Action, Actor, Cause, Message, Observation, Outcome, Replay
from services.proxy.conversation import Fingerprints
from services.proxy.sessions import Session

_MOST = 500
"""More messages than this since the last answer are no turn of anybody's: the first of them are in the call only."""


class Inputs:
    """The messages of a request that nobody has answered yet."""

    def __init__(
        self, session: Session, conversation: list[dict[str, Any]], prints: Fingerprints, turns_before: int
    ) -> None:
        self._session = session
        self._conversation = conversation
        self._prints = prints
        self._turns_before = turns_before
        self._turns: list[int] = []
        self.trailing = self._trailing()
        self._ids = {index: self._id(index) for index in self.trailing if self._is_event(index)}

    def basis(self) -> tuple[Any, ...]:
        """Everything in the session that what is said here depends on: while it is the same, so is that."""
        session = self._session
        tools = (self._conversation[index]["parts"][0].get("id") for index in self.trailing if self._is_tool(index))
        calls = tuple((id, id in session.reported, session.calls.get(id)) for id in tools if isinstance(id, str))
        return session.trajectory_id, calls, tuple(session.seen.get(id) for id in self._ids.values())

    def unstored(self) -> dict[str, dict[str, Any]]:
        """Fields of the events that are not in the log yet, by event id."""
        return {
            id: self._user_message(index) if self._conversation[index]["role"] == "user" else self._tool_call(index)
            for index, id in self._ids.items()
            if id not in self._session.seen
        }

    def exact_forms(self) -> dict[str, bytes]:
        """The exact form of each of these events' messages."""
        return {id: self._prints.pieces[index] for index, id in self._ids.items()}

    def causes(self) -> list[Cause]:
        """What was in front of the model that had not been before."""
        return [Cause(id=id, rel="input") for id in self._ids.values()]

    def pointer(self, index: int) -> dict[str, Any]:
        """The message at this place, or its event where the event holds exactly the message."""
        message = self._conversation[index]
        id = self._ids.get(index)
        held = message["role"] == "user" or message.keys() == {"role", "parts"}
        if (
            id is None
            or not held
            or self._session.seen.get(id, self._prints.pieces[index]) != self._prints.pieces[index]
        ):
            return message
        return {"event": id}

    def turn(self, index: int) -> int:
        """User messages up to this place, the conversation before the request included."""
        if not self._turns:
            users = (message["role"] == "user" for message in self._conversation)
            self._turns = list(accumulate(users, initial=self._turns_before))
        return self._turns[min(index, len(self._conversation) - 1) + 1]

    def _trailing(self) -> range:
        start = len(self._conversation)
        while start and self._conversation[start - 1]["role"] != "assistant":
            start -= 1
        return range(max(start, len(self._conversation) - _MOST), len(self._conversation))

    def _is_event(self, index: int) -> bool:
        if self._is_tool(index):
            return self._conversation[index]["parts"][0].get("id") not in self._session.reported
        return self._conversation[index]["role"] == "user"

    def _is_tool(self, index: int) -> bool:
        return self._conversation[index]["role"] == "tool"

    def _id(self, index: int) -> str:
        """By what was said so far, so that the same message sent again is the same event."""
        return derived_id("ev", self._session.trajectory_id, self._prints.meanings[index].hex())

    def _user_message(self, index: int) -> dict[str, Any]:
        return {
            "kind": "user_message",
            "turn": self.turn(index),
            "actor": Actor(type="user"),
            "o": Observation(messages=[convert(self._conversation[index], Message)]),
            "y": Outcome(status="ok"),
        }

    def _tool_call(self, index: int) -> dict[str, Any]:
        message = self._conversation[index]
        response = message["parts"][0]
        call_id = response.get("id")
        pending = self._session.calls.get(call_id) if isinstance(call_id, str) else None
        name, arguments = (pending.name, pending.arguments) if pending else self._called(call_id)
        failed = message.get("ext", {}).get("block", {}).get("is_error") is True
        return {
            "kind": "tool_call",
            "turn": self.turn(index),
            "step": pending.step if pending else UNSET,
            "actor": Actor(type="agent"),
            "parent_id": pending.event_id if pending else UNSET,
            "causes": [Cause(id=pending.event_id, rel="decided_by")] if pending else UNSET,
            "a": Action(name=name, call_id=call_id, arguments=arguments),
            "y": Outcome(status="error" if failed else "ok", result=response.get("response")),
            # nobody has said what the tool does: assume that it writes, and that its result may be replayed
            "replay": Replay(class_="approximate", boundary="tenant", effect="write", stub=True),
        }

    def _called(self, call_id: Any) -> tuple[str, Any]:
        """Name and arguments of a call that only the client's own history has."""
        for message in reversed(self._conversation):
            for call in messages.tool_calls(message):
                if call.get("id") == call_id:
                    return call["name"], call["arguments"]
        return "unknown", UNSET
