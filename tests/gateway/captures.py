"""Recorded client traffic that the repository does not carry: `../shared/captures`, or where EVOPLANE_SHARED says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SHARED = Path(os.environ.get("EVOPLANE_SHARED", Path(__file__).parents[3] / "shared"))


def captures(framework: str) -> list[dict[str, Any]]:
    """The recorded exchanges of a framework in the order they were made; empty when there are none here."""
    folder = SHARED / "captures" / framework
    read = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
    return read
