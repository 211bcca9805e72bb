"""Real wire traffic of agent frameworks, recorded against a scripted upstream. Not part of the repository:
tests that need it are skipped, with the reason, where it is absent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.shared import SHARED

_FOLDER = SHARED / "captures"

needs_captures = pytest.mark.skipif(not _FOLDER.is_dir(), reason=f"no recorded traffic at {_FOLDER}")


@dataclass(frozen=True)
class Capture:
    """One request and its answer."""

    name: str
    framework: str
    scenario: str
    method: str
    path: str
    headers: dict[str, str]
    """Of the request, names in lower case."""
    body: Any
    status: int | None
    answer_headers: dict[str, str]
    answer: bytes
    end: str

    @property
    def dialect_path(self) -> str:
        """The path behind `/v1`, without a session's tag."""
        return "/" + self.path.split("/v1/")[-1].lstrip("/")

    @property
    def streamed(self) -> bool:
        return self.answer_headers.get("content-type", "").startswith("text/event-stream")

    @property
    def whole(self) -> bool:
        """Did the answer arrive as far as its terminal event, and was it recorded untrimmed?"""
        ended = self.end.split(":")[0] in ("complete", "client_closed_after_terminal_event")
        return self.status == 200 and ended and b"characters]" not in self.answer and b"[TRIMMED" not in self.answer


@cache
def captures() -> tuple[Capture, ...]:
    """Every recorded HTTP exchange; none where there is no recording."""
    files = sorted(_FOLDER.glob("*/[0-9]*.json")) if _FOLDER.is_dir() else []
    return tuple(capture for file in files if (capture := _read(file)) is not None)


def _read(file: Path) -> Capture | None:
    raw = json.loads(file.read_text())
    request, response = raw.get("request"), raw.get("response") or {}
    if not isinstance(request, dict) or "path" not in request:
        return None
    chunks = response.get("chunks") or []
    return Capture(
        name=f"{file.parent.name}/{file.name}",
        framework=file.parent.name,
        scenario=raw.get("scenario", ""),
        method=request["method"],
        path=request["path"],
        headers={name.lower(): value for name, value in request.get("headers") or []},
        body=request.get("body"),
        status=response.get("status"),
        answer_headers={name.lower(): value for name, value in response.get("headers") or []},
        answer="".join(text for _, text in chunks if isinstance(text, str)).encode(),
        end=response.get("end") or "",
    )
