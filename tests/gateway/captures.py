"""Recorded client traffic that the repository does not carry: `../shared/captures`, or where EVOPLANE_SHARED says."""

from __future__ import annotations

import json
from typing import Any

from tests.shared import SHARED


def captures(framework: str) -> list[dict[str, Any]]:
    """The recorded exchanges of a framework in the order they were made; empty when there are none here."""
    folder = SHARED / "captures" / framework
    read = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
    return read
