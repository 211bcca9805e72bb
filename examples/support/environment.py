"""The shop as an environment: Gymnasium's calls over `Shop`, to try a tool call without a customer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from examples.support.shop import LOOK_UPS, TOOLS, Shop


class ShopEnvironment:
    """An order book of its own; nothing outside it is changed."""

    sandboxed = True
    effects: Mapping[str, str] = {
        t["function"]["name"]: "read" if t["function"]["name"] in LOOK_UPS else "write" for t in TOOLS
    }

    def __init__(self) -> None:
        self._shop = Shop()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._shop.reset()
        return "", {}

    def step(self, action: Mapping[str, Any]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        try:
            return self._shop.call(action["name"], action["arguments"] or {}), 0.0, False, False, {}
        except ValueError as error:
            return str(error), 0.0, False, False, {"status": "error"}

    def state(self) -> dict[str, dict[str, str]]:
        return self._shop.state()

    def clone(self) -> ShopEnvironment:
        return copy.deepcopy(self)
