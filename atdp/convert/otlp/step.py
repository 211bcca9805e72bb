"""What a convention makes of a span: the parts of an event that don't depend on where it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atdp import messages


@dataclass
class Step:
    """An event in the making, out of one span."""

    kind: str
    o: dict[str, Any] = field(default_factory=dict)
    h: dict[str, Any] = field(default_factory=dict)
    a: dict[str, Any] = field(default_factory=dict)
    y: dict[str, Any] = field(default_factory=dict)
    m: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    """Parts of a context's body: model, harness."""
    tools: list[Any] = field(default_factory=list)
    """Tool definitions, as they were given to the model."""
    session_id: str | None = None
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """Rewards reported on the span: fields of annotations."""
    told: set[str] = field(default_factory=set)
    """Attributes that have a place above; the others are kept in `ext.otel`."""

    def asked_for(self) -> list[str]:
        """Ids of the tool calls an answer made."""
        said = self.a.get("messages") or []
        return [call["id"] for message in said for call in messages.tool_calls(message) if call.get("id")]

    def answered(self) -> list[str]:
        """Ids of the tool calls whose results were shown to the model."""
        return [
            part["id"]
            for message in self.o.get("messages") or []
            for part in message["parts"]
            if part["type"] == "tool_call_response" and part.get("id")
        ]


class Taker:
    """Reads attributes and remembers which."""

    def __init__(self, attributes: dict[str, Any], step: Step) -> None:
        self._attributes, self._step = attributes, step

    def take(self, *names: str) -> Any:
        """The first of these attributes that is there; all of them count as told."""
        found = None
        for name in names:
            if name in self._attributes:
                self._step.told.add(name)
                if found is None:
                    found = self._attributes[name]
        return found

    def under(self, prefix: str) -> dict[str, Any]:
        """The attributes that begin with a prefix, without it."""
        found = {k.removeprefix(prefix): v for k, v in self._attributes.items() if k.startswith(prefix)}
        self._step.told.update(prefix + key for key in found)
        return found
