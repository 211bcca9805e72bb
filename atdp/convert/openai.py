"""OpenAI's fine-tuning files, JSON lines: supervised (`messages`) and preference (`input`, two outputs)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from atdp.convert.base import (
    ContentOf,
    Format,
    Item,
    ReadOptions,
    Record,
    Source,
    content_key,
    json_line,
    json_lines,
    without,
)
from atdp.convert.conversation import Conversation, present
from atdp.convert.loss import LossReport
from atdp.convert.pairs import PAIR, add_pair, is_pair, pairs
from atdp.convert.tau import add_openai
from atdp.convert.transcripts import TRANSCRIPT, openai, report_off_line, show
from atdp.convert.view import Said, trajectories


class OpenAISft(Format):
    """One conversation a line: `{messages, tools?, parallel_tool_calls?}`."""

    name = "openai-sft"
    purpose = "train"
    title = "OpenAI fine-tuning, supervised (JSON lines of messages)"
    carries = TRANSCRIPT | {"trajectory.ext.openai_sft", "context.tools"}

    def detect(self, document: Any) -> bool:
        return (
            isinstance(document, dict)
            and isinstance(document.get("messages"), list)
            and document.keys() <= {"messages", "tools", "functions", "parallel_tool_calls"}
        )

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for _, line in json_lines(source):
            rest = without(line, "messages", "tools")
            conversation = Conversation(
                self.name,
                content_key(line, options),
                options,
                loss,
                tools=line.get("tools"),
                **present(ext={"openai_sft": rest} if rest else None),
            )
            for raw in line["messages"]:
                add_openai(conversation, raw)
            yield from conversation.drafts()

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            transcript = view.transcript()
            if not any(said.message["role"] == "assistant" for said in transcript):
                loss.lose("trajectory (no answer)", view.id, "nothing to learn: no assistant message")
                continue
            loss.items += 1
            report_off_line(view, transcript, loss)
            line: dict[str, Any] = {"messages": [_weighted(said, loss) for said in transcript]}
            if tools := view.tools(content):
                line["tools"] = tools
            yield json_line({**line, **view.ext("openai_sft")})


class OpenAIPreference(Format):
    """One pair a line: `{input: {messages, tools?}, preferred_output, non_preferred_output}` (DPO)."""

    name = "openai-preference"
    purpose = "train"
    title = "OpenAI fine-tuning, preference pairs (JSON lines)"
    carries = TRANSCRIPT | PAIR | {"trajectory.ext.openai_preference", "context.tools"}

    def detect(self, document: Any) -> bool:
        return isinstance(document, dict) and {"preferred_output", "non_preferred_output"} <= document.keys()

    def has_annotation(self, annotation: Record) -> bool:
        return is_pair(annotation)

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for _, line in json_lines(source):
            given = line["input"]
            rest = without(given, "messages", "tools")
            conversation = Conversation(
                self.name,
                content_key(line, options),
                options,
                loss,
                tools=given.get("tools"),
                **present(ext={"openai_preference": rest} if rest else None),
            )
            for raw in given["messages"]:
                add_openai(conversation, raw)
            add_pair(conversation, line["preferred_output"], line["non_preferred_output"])
            yield from conversation.drafts()

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            for pair in pairs(view, loss):
                loss.items += 1
                given: dict[str, Any] = {"messages": [_plain(show(said, loss)) for said in pair.prompt]}
                if tools := view.tools(content):
                    given["tools"] = tools
                yield json_line(
                    {
                        "input": {**given, **view.ext("openai_preference")},
                        "preferred_output": [_plain(openai(pair.chosen))],
                        "non_preferred_output": [_plain(openai(pair.rejected))],
                    }
                )


def _weighted(said: Said, loss: LossReport) -> dict[str, Any]:
    """A message; one of the assistant's that no model made is not to be learnt from."""
    message = _plain(show(said, loss))
    scripted = message["role"] == "assistant" and said.event is None
    return {**message, "weight": 0} if scripted else message


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Without a content of null, which a message that calls tools need not have."""
    if message.get("content") is None and message.get("tool_calls"):
        return without(message, "content")
    return message
