"""TensorZero's inferences and feedback, JSON lines (tensorzero/tensorzero).

Inferences become the model calls of their episode's trajectory; feedback becomes late annotations of an inference or an
episode, whichever the target turns out to be. Ids are UUIDv7: they say when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

import msgspec
import orjson

from atdp import clock
from atdp.convert.base import (
    ContentOf,
    Format,
    Item,
    Late,
    ReadOptions,
    Record,
    Source,
    json_line,
    json_lines,
    parsed,
    without,
)
from atdp.convert.conversation import Conversation, text_message
from atdp.convert.loss import LossReport
from atdp.convert.view import trajectories
from atdp.ids import derived_id
from atdp.records import AnnotationDraft

_NAME = "tensorzero"
_OWN_PART = "x.tensorzero"
"""A template's arguments where a message's text would be."""
_CALL_KEYS = ("id", "episode_id", "input", "output", "inference_params", "processing_time_ms")
_FEEDBACK_KEYS = ("id", "target_id", "inference_id", "value", "metric_name", "tags")


class TensorZero(Format):
    """Inferences (chat and JSON functions) and feedback (metrics, comments, demonstrations)."""

    name = _NAME
    title = "TensorZero inferences and feedback (JSON lines)"
    carries = frozenset(
        {"event.kind", "event.time", "event.turn", "event.step", "event.actor", "event.o.messages", "event.a.messages",
         "event.a.params", "event.duration_ms", "event.ext.tensorzero", "event.m.tags", "trajectory.session_id",
         "trajectory.time", "trajectory.ext.tensorzero", "annotation.kind", "annotation.name", "annotation.value",
         "annotation.targets", "annotation.explanation", "annotation.chosen", "annotation.observed_at",
         "annotation.time", "annotation.source", "annotation.ext", "annotation.optimizable", "context.harness"}
    )  # fmt: skip

    def detect(self, document: Any) -> bool:
        if not isinstance(document, dict):
            return False
        return {"episode_id", "function_name", "input"} <= document.keys() or _is_feedback(document)

    def has_annotation(self, annotation: Record) -> bool:
        return _NAME in annotation.get("ext", {})

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        episodes: dict[str, list[dict[str, Any]]] = {}
        values: dict[tuple[str, str], Any] = {}
        for _, line in json_lines(source):
            if _is_feedback(line):
                loss.items += 1
                self._warn(line, values, loss)
                yield _feedback(line)
            else:
                episodes.setdefault(line["episode_id"], []).append(line)
        for id, calls in episodes.items():
            yield from _episode(id, sorted(calls, key=lambda call: str(call["id"])), options, loss)

    @staticmethod
    def _warn(line: dict[str, Any], values: dict[tuple[str, str], Any], loss: LossReport) -> None:
        target, metric = _target(line), str(line.get("metric_name"))
        if "metric_name" in line and values.setdefault((target, metric), line["value"]) != line["value"]:
            loss.note("two_values", f"{metric} of {target}", "both are kept: neither says that it replaces the other")
        if line["id"] < target:
            loss.note("older_than_target", line["id"], "the feedback's id was made before its target's: kept as it is")

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            for call in view.calls():
                if _NAME in call.get("ext", {}):
                    loss.items += 1
                    prompt = [said.message for said in view.prompt(call)]
                    yield json_line(_inference(call, prompt, str(view.header.get("session_id"))))
                else:
                    loss.lose("event.llm_call (of another source)", call["id"], "it has no function or variant")
            for annotation in view.annotations:
                if self.has_annotation(annotation):
                    loss.items += 1
                    yield json_line(_feedback_line(annotation))


# -- inferences


def _episode(id: str, calls: list[dict[str, Any]], options: ReadOptions, loss: LossReport) -> Iterator[Item]:
    conversation = Conversation(_NAME, id, options, loss, time=_moment(id), session_id=id)
    for call in calls:
        conversation.now = _moment(call["id"])
        conversation.last_call = None  # every inference brings its whole prompt
        given = parsed(call["input"])
        if given.get("system") is not None:
            conversation.given(_message("system", given["system"]))
        for message in given.get("messages", ()):
            conversation.given(_message(message["role"], message["content"]))
        output = parsed(call["output"])
        kept = {key: value for key, value in call.items() if key not in _CALL_KEYS and value not in (None, "")}
        if isinstance(output, dict):
            kept["json"] = True
            if parsed(output.get("raw")) != output.get("parsed"):
                kept["parsed"] = output.get("parsed")
            parts = [{"type": "text", "content": output.get("raw")}]
        else:
            parts = [_part(block, "text") for block in output]
        conversation.assistant(
            {"role": "assistant", "parts": parts},
            id=derived_id("ev", _NAME, call["id"]),
            a={"params": parsed(call.get("inference_params")) or {}},
            duration_ms=call.get("processing_time_ms"),
            m={"tags": {key: str(value) for key, value in (call.get("tags") or {}).items()}}
            if call.get("tags")
            else {},
            ext={_NAME: {"inference_id": call["id"], **kept}},
        )
    return iter(conversation.drafts())


def _message(role: str, content: Any) -> dict[str, Any]:
    if isinstance(content, str):
        return text_message(role, content)
    if not isinstance(content, list):
        return {"role": role, "parts": [{"type": _OWN_PART, "content": content}], "ext": {_NAME: "bare"}}
    return {"role": role, "parts": [_part(block, "value") for block in content]}


def _part(block: Any, key: str) -> dict[str, Any]:
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get(key), str) and len(block) == 2:
        return {"type": "text", "content": block[key]}
    return {"type": _OWN_PART, "content": block}


def _inference(call: Record, prompt: list[dict[str, Any]], episode: str) -> dict[str, Any]:
    kept = dict(call["ext"][_NAME])
    given: dict[str, Any] = {}
    if prompt and prompt[0]["role"] == "system":
        given["system"] = _content(prompt[0])
        prompt = prompt[1:]
    given["messages"] = [{"role": m["role"], "content": _blocks(m, "value")} for m in prompt]
    answer = call["a"]["messages"][0]
    output: Any = _blocks(answer, "text")
    if kept.pop("json", False):
        raw = answer["parts"][0]["content"]
        output = {"raw": raw, "parsed": kept.pop("parsed", parsed(raw))}
    line = {
        "id": kept.pop("inference_id"),
        "episode_id": episode,
        "input": orjson.dumps(given).decode(),
        "output": orjson.dumps(output).decode(),
        "inference_params": orjson.dumps(call["a"].get("params", {})).decode(),
        "tags": kept.pop("tags", {}),
        **kept,
    }
    if "duration_ms" in call:
        line["processing_time_ms"] = round(call["duration_ms"])
    return line


def _content(message: dict[str, Any]) -> Any:
    if message.get("ext", {}).get(_NAME) == "bare":
        return message["parts"][0]["content"]
    return "".join(part["content"] for part in message["parts"])


def _blocks(message: dict[str, Any], key: str) -> list[Any]:
    return [
        {"type": "text", key: part["content"]} if part["type"] == "text" else part["content"]
        for part in message["parts"]
    ]


# -- feedback


def _is_feedback(line: dict[str, Any]) -> bool:
    return {"id", "value"} <= line.keys() and ("target_id" in line or "inference_id" in line)


def _target(line: dict[str, Any]) -> str:
    return str(line.get("target_id") or line.get("inference_id"))


def _feedback(line: dict[str, Any]) -> Late:
    target = _target(line)
    event, trajectory = derived_id("ev", _NAME, target), derived_id("tr", _NAME, target)
    moment = _moment(line["id"])
    draft: dict[str, Any] = {
        "atdp": "1.0",
        "record": "annotation",
        # one person's verdict by two metrics has one id
        "id": derived_id("an", _NAME, line["id"], str(line.get("metric_name", ""))),
        "trajectory_id": trajectory,
        "targets": [{"trajectory_id": trajectory}],
        "source": {"kind": "human"},
        "time": moment,
        "observed_at": moment,
        "ext": {_NAME: {"id": line["id"], "target_id": target, **without(line, *_FEEDBACK_KEYS)}},
    }
    if line.get("tags"):
        draft["ext"][_NAME]["tags"] = line["tags"]
    if "metric_name" in line:
        # a number given by TensorZero's client: whether by a person or a program, the row does not say
        draft |= {"kind": "reward", "name": line["metric_name"], "value": line["value"], "source": {"kind": "implicit"}}
    elif "inference_id" in line:
        blocks = parsed(line["value"])
        said = {"role": "assistant", "content": _demonstrated(blocks)}
        draft |= {"kind": "preference", "name": "demonstration", "chosen": {"trajectory_id": trajectory}}
        draft["ext"] |= {"demonstration": said}
        draft["ext"][_NAME] |= {"demonstration": line["value"]}
        return Late("event", event, msgspec.convert(draft, AnnotationDraft))
    else:
        draft |= {"kind": "critique", "name": "comment", "explanation": line["value"]}
    kind = {"episode": "trajectory", "inference": "event"}.get(str(line.get("target_type")), "either")
    return Late(
        kind, trajectory if kind == "trajectory" else event, msgspec.convert(draft, AnnotationDraft), trajectory
    )


def _demonstrated(value: Any) -> str:
    if isinstance(value, list):
        return "".join(str(block.get("text", "")) for block in value if isinstance(block, dict))
    return value["raw"] if isinstance(value, dict) and "raw" in value else orjson.dumps(value).decode()


def _feedback_line(annotation: Record) -> dict[str, Any]:
    kept = dict(annotation["ext"][_NAME])
    line: dict[str, Any] = {"id": kept.pop("id"), "tags": kept.pop("tags", {})}
    target = kept.pop("target_id")
    match annotation["kind"]:
        case "reward":
            line |= {"target_id": target, "metric_name": annotation["name"], "value": annotation["value"]}
        case "preference":
            line |= {"inference_id": target, "value": kept.pop("demonstration")}
        case _:
            line |= {"target_id": target, "value": annotation["explanation"]}
    return {**line, **kept}


def _moment(id: str) -> str:
    """When a UUIDv7 was made."""
    return clock.from_epoch((UUID(id).int >> 80) / 1000)
