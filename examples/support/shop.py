"""The shop behind the support agent: four deterministic tools over an order book.

This is the agent's own back office: `reset` gives a fresh order book, `call` executes one tool, `state` can be
compared. Nothing here touches a network, so replay may execute it freely (`environment.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

REASONS = ("damaged", "wrong_item", "changed_mind")


def _tool(name: str, description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
        },
    }


_ORDER_ID = {"type": "string"}

TOOLS: list[dict[str, Any]] = [
    _tool("track_order", "where a parcel is", order_id=_ORDER_ID),
    _tool("cancel_order", "stop an order", order_id=_ORDER_ID),
    _tool(
        "start_return",
        "send goods back",
        order_id=_ORDER_ID,
        reason={"type": "string", "enum": list(REASONS)},
    ),
    _tool("change_address", "deliver elsewhere", order_id=_ORDER_ID, city={"type": "string"}),
]
"""The tools as the OpenAI SDK sends them."""

LOOK_UPS = frozenset({"track_order"})
"""Tools that find something out and change nothing."""


@dataclass
class Shop:
    """An order book. Orders exist on first mention: the customer is taken at their word."""

    orders: dict[str, dict[str, str]] = field(default_factory=dict)

    def reset(self) -> None:
        self.orders.clear()

    def state(self) -> dict[str, dict[str, str]]:
        return {order: dict(facts) for order, facts in self.orders.items()}

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Execute a tool; raises `ValueError` for an unknown tool or bad arguments."""
        schema = next((t["function"] for t in TOOLS if t["function"]["name"] == name), None)
        if schema is None:
            raise ValueError(f"unknown tool {name!r}")
        expected = set(schema["parameters"]["properties"])
        if set(arguments) != expected or not all(isinstance(v, str) for v in arguments.values()):
            raise ValueError(f"{name} takes the strings {sorted(expected)}")
        if name == "start_return" and arguments["reason"] not in REASONS:
            raise ValueError(f"reason must be one of {', '.join(REASONS)}")
        order = self.orders.setdefault(arguments["order_id"], {"status": "shipped"})
        match name:
            case "track_order":
                return f"order {arguments['order_id']}: {order['status']}"
            case "cancel_order":
                order["status"] = "cancelled"
            case "start_return":
                order["status"] = f"return ({arguments['reason']})"
            case "change_address":
                order["city"] = arguments["city"]
        return f"order {arguments['order_id']}: ok"
