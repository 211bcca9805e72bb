"""ADP, the Agent Data Protocol (neulab/agent-data-protocol, arXiv:2510.24702), JSON lines: `{id, content, details}`.

An ADP trajectory alternates actions (API call, code, message) and observations (text, web). It has neither
times nor call ids, tokens, cost or versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from atdp import messages
from atdp.convert.base import (
    ContentOf,
    Format,
    Item,
    ReadOptions,
    Record,
    Source,
    content_key,
    json_documents,
    json_line,
    without,
)
from atdp.convert.conversation import Conversation, text_message
from atdp.convert.loss import LossReport
from atdp.convert.transcripts import TRANSCRIPT, report_off_line, text_of
from atdp.convert.view import Said, TrajectoryView, trajectories

VERSION = "1.2.0"
_SOURCES = {"user": "user", "user_msg": "user", "agent": "assistant", "assistant": "assistant", "system": "system"}


_SPOKEN = ("description", "tool_call_id", "reasoning_content", "reward")


class Adp(Format):
    """One trajectory a line, or a JSON array of them."""

    name = "adp"
    title = "Agent Data Protocol trajectories (JSON lines or array)"
    carries = (TRANSCRIPT - {"event.a.call_id"}) | {"trajectory.ext.adp", "event.ext.adp"}

    def detect(self, document: Any) -> bool:
        first = document[0] if isinstance(document, list) and document else document
        content = first.get("content") if isinstance(first, dict) else None
        return isinstance(content, list) and bool(content) and all("class_" in item for item in content[:1])

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward" and "event_id" in annotation["targets"][0]

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for found in json_documents(source):
            for document in found if isinstance(found, list) else [found]:
                yield from _read(document, options, loss)

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            loss.items += 1
            kept = view.ext("adp")
            transcript = view.transcript()
            report_off_line(view, transcript, loss)
            rewards = {a["targets"][0].get("event_id"): a["value"] for a in view.rewards() if self.has_annotation(a)}
            steps = [step for said in transcript for step in _steps(said, rewards, view, loss)]
            line = {"schema_version": VERSION, "id": view.id, "content": steps, "details": {}, **kept}
            yield json_line(line)


def _read(document: dict[str, Any], options: ReadOptions, loss: LossReport) -> list[Item]:
    conversation = Conversation(
        "adp", content_key(document, options), options, loss, ext={"adp": without(document, "content")}
    )
    for steps in _answers(document["content"]):
        step = steps[0]
        match step["class_"], _SOURCES.get(step.get("source", "")):
            case ("api_action" | "code_action", _):
                _act(conversation, steps)
            case ("message_action", _):
                said = text_message("assistant", step["content"])
                _rewarded(conversation, conversation.assistant(_thought(said, step), **_kept(step, "content")), step)
            case ("text_observation", "user"):
                conversation.user(text_message("user", step["content"]), **_kept(step, "content", "source"))
            case ("text_observation", "system" | "assistant" as role):
                conversation.given(text_message(role, step["content"]))
            case ("text_observation" | "web_observation" | "image_observation", _):
                _observed(conversation, step)
            case other, _:
                loss.lose(f"content[].{other}", step, "no such class is known")
    return conversation.drafts()


def _answers(content: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Steps one by one, but an action and those right after it that bring no thought of their own as one answer."""
    group: list[dict[str, Any]] = []
    for step in content:
        acts = step["class_"] in ("api_action", "code_action")
        if group and not (acts and not step.get("description") and not step.get("reasoning_content")):
            yield group
            group = []
        if acts:
            group.append(step)
        else:
            yield [step]
    if group:
        yield group


def _act(conversation: Conversation, steps: list[dict[str, Any]]) -> None:
    first = steps[0]
    parts: list[dict[str, Any]] = []
    if first.get("description"):
        parts.append({"type": "text", "content": first["description"]})
    kept = []
    for step in steps:
        code = step["class_"] == "code_action"
        call = {"type": "tool_call", "id": step.get("tool_call_id")}
        if code:
            call |= {"name": step["language"], "arguments": {"code": step["content"]}}
        else:
            call |= {"name": step["function"], "arguments": step.get("kwargs") or {}}
        parts.append(call)
        told = ("language", "content") if code else ("function", "kwargs")
        kept.append(without(step, *told, *_SPOKEN, *(() if code else ("class_",))))
    said = _thought({"role": "assistant", "parts": parts}, first)
    event = conversation.assistant(said, ext={"adp": {"steps": kept}} if any(kept) else {})
    _rewarded(conversation, event, first)


def _observed(conversation: Conversation, step: dict[str, Any]) -> None:
    """What an action brought: the result of the oldest unanswered call, or just something shown."""
    content = step["content"] if step["class_"] == "text_observation" else without(step, "class_")
    if conversation.waiting():
        kind = "browser_op" if step["class_"] == "web_observation" else "tool_call"
        event = conversation.tool(
            step.get("tool_call_id"), content, kind=kind, **_kept(step, "content", "tool_call_id", keep_class=True)
        )
        _rewarded(conversation, event, step)
        return
    conversation.loss.note(
        "unasked_observation", text_of(content), "no action asked for it: a message from the environment"
    )
    conversation.given({**text_message("user", text_of(content)), "ext": {"adp": without(step, "content")}})


def _thought(message: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    if step.get("reasoning_content"):
        reasoning = {"type": "reasoning", "content": step["reasoning_content"], "name": "reasoning_content"}
        message["parts"].insert(0, reasoning)
    return message


def _kept(step: dict[str, Any], *told: str, keep_class: bool = False) -> dict[str, Any]:
    """What has no field; the class too where it can't be told from the record."""
    keys = [*told, "reasoning_content", "reward", *(() if keep_class else ("class_",))]
    rest = without(step, *keys)
    return {"ext": {"adp": rest}} if rest else {}


def _rewarded(conversation: Conversation, event: str, step: dict[str, Any]) -> None:
    if step.get("reward") is not None:
        conversation.annotate(
            "reward", "reward", {"kind": "environment"}, event_id=event, value=float(step["reward"]), optimizable=True
        )


def _steps(said: Said, rewards: dict[Any, Any], view: TrajectoryView, loss: LossReport) -> Iterator[dict[str, Any]]:
    message, event = said.message, said.event or {}
    kept = event.get("ext", {}).get("adp", {}) or message.get("ext", {}).get("adp", {})
    reward = {"reward": rewards[event["id"]]} if event and event["id"] in rewards else {}
    match message["role"]:
        case "assistant" if not event:
            yield {"class_": "text_observation", "content": messages.text(message), "source": "agent", **kept}
        case "assistant":
            yield from _actions(message, kept, reward, loss)
        case "tool":
            response = message["parts"][0].get("response")
            if kept.get("class_") in ("web_observation", "image_observation") and isinstance(response, dict):
                yield {**response, **kept, **reward}
            else:
                text = {"class_": "text_observation", "content": text_of(response), "source": "environment"}
                yield {**text, **kept, **reward}
        case role:
            source = kept.get("source") or {"user": "user", "system": "system", "developer": "system"}.get(role, role)
            yield {"class_": "text_observation", "content": messages.text(message), "source": source, **kept, **reward}


def _actions(
    message: dict[str, Any], kept: dict[str, Any], reward: dict[str, Any], loss: LossReport
) -> Iterator[dict[str, Any]]:
    spoken = messages.text(message)
    thought = "".join(str(part["content"]) for part in message["parts"] if part["type"] == "reasoning")
    rest: dict[str, Any] = {**({"reasoning_content": thought} if thought else {}), **reward}
    calls = messages.tool_calls(message)
    if not calls:
        yield {"class_": "message_action", "content": spoken, **rest, **kept}
    steps = kept.get("steps") or [{} for _ in calls]
    for index, (call, own) in enumerate(zip(calls, steps, strict=True)):
        if call.get("id"):
            loss.lose("part.tool_call.id", call["id"], "ADP joins calls and results by their order")
        arguments = call.get("arguments")
        described = {"description": spoken} if spoken and index == 0 else {}
        if own.get("class_") == "code_action" and isinstance(arguments, dict) and "code" in arguments:
            step: dict[str, Any] = {"language": call["name"], "content": arguments["code"]}
        else:
            if not isinstance(arguments, dict):
                loss.note("arguments", arguments, "ADP's arguments are an object: the text is under `raw`")
                arguments = {"raw": arguments}
            step = {"class_": "api_action", "function": call["name"], "kwargs": arguments}
        yield {**step, **described, **(rest if index == 0 else {}), **own}
