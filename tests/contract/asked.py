"""What a request says, whichever dialect it says it in: as much of it as the scripted model looks at."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_BESIDE = ("<system-reminder>", "Observation:", "Now proceed")
"""User messages that begin like this are no question: what a harness adds, and smolagents' results in words."""


@dataclass
class Said:
    """One message: `text` for people and tools, `calls` as (name, arguments)."""

    role: str
    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)


@dataclass
class Asked:
    """A request as the model reads it."""

    said: list[Said]
    tools: dict[str, dict[str, Any]]
    """Parameter schemas by name."""
    schema: dict[str, Any] | None = None
    """What the answer must be, when it must be JSON."""
    thinks: bool = False

    @property
    def question(self) -> str:
        """The user's newest."""
        return next((each.text for each in reversed(self.said) if _asks(each)), "")

    @property
    def since(self) -> list[Said]:
        """What came after the question."""
        places = [place for place, each in enumerate(self.said) if _asks(each)]
        return self.said[places[-1] + 1 :] if places else self.said

    @property
    def results(self) -> list[str]:
        """What tools have said since the question."""
        found = []
        for each in self.since:
            if each.role == "tool":
                found.append(each.text)
            elif each.role == "user" and each.text.startswith("Observation:"):
                found.append(each.text.removeprefix("Observation:").strip())
        return found

    @property
    def called(self) -> set[str]:
        return {name for each in self.since for name, _ in each.calls}


def _asks(each: Said) -> bool:
    return each.role == "user" and bool(each.text) and not each.text.startswith(_BESIDE)


def read(path: str, body: dict[str, Any]) -> Asked:
    """A request's meaning; `path` is the dialect's, behind `/v1`."""
    reader = {"/chat/completions": _chat, "/responses": _responses, "/messages": _messages}[path]
    return reader(body)


def _chat(body: dict[str, Any]) -> Asked:
    said: list[Said] = []
    for message in body["messages"]:
        before, task, question = _text(message.get("content")).partition("New task:\n")
        if task:
            said += [Said("user", before), Said("user", question)]
            continue
        calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
        said.append(Said(message["role"], _text(message.get("content")), calls))
    tools = {t["function"]["name"]: t["function"].get("parameters") or {} for t in body.get("tools") or ()}
    form = body.get("response_format") or {}
    return Asked(said, tools, (form.get("json_schema") or {}).get("schema"), "reasoning" in body["model"])


def _responses(body: dict[str, Any]) -> Asked:
    given = body.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    said = []
    for item in items:
        match item.get("type", "message"):
            case "message":
                said.append(Said(item["role"], _text(item.get("content"))))
            case "function_call":
                said.append(Said("assistant", "", [(item["name"], item["arguments"])]))
            case "function_call_output":
                said.append(Said("tool", _text(item["output"])))
    tools = {t["name"]: t.get("parameters") or {} for t in body.get("tools") or () if t["type"] == "function"}
    form = (body.get("text") or {}).get("format") or {}
    return Asked(said, tools, form.get("schema"), bool(body.get("include")))


def _messages(body: dict[str, Any]) -> Asked:
    said = []
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = [b["text"] for b in blocks if b["type"] == "text" and not b["text"].startswith(_BESIDE)]
        calls = [(b["name"], json.dumps(b["input"])) for b in blocks if b["type"] == "tool_use"]
        said += [Said("tool", _text(b.get("content"))) for b in blocks if b["type"] == "tool_result"]
        if texts or calls:
            said.append(Said(message["role"], "\n".join(texts), calls))
    tools = {t["name"]: t.get("input_schema") or {} for t in body.get("tools") or ()}
    form = (body.get("output_config") or {}).get("format") or {}
    thinks = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
    return Asked(said, tools, form.get("schema"), thinks)


def _text(content: Any) -> str:
    """Text as it stands, or the texts of its parts; Claude Code's ids of sub-agents, which no run repeats, cut off."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict)]
        content = " ".join(str(part.get("text") or part.get("tool_name") or "") for part in parts)
    return str(content or "").partition("agentId:")[0].strip()


CITIES = re.compile(r"\b(Paris|Rome|Oslo)\b")
