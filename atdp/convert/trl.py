"""TRL's dataset forms as JSON lines: SFT, preference, and GRPO roll-outs.

Conversational rows hold lists of messages, standard rows hold strings; both are read, conversational ones written.
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
    json_line,
    json_lines,
    without,
)
from atdp.convert.conversation import Conversation
from atdp.convert.loss import LossReport
from atdp.convert.pairs import PAIR, add_pair, is_pair, pairs
from atdp.convert.tau import add_openai
from atdp.convert.transcripts import TRANSCRIPT, openai, report_off_line, show
from atdp.convert.view import TrajectoryView, trajectories

_GROUP_COLUMNS = ("prompt", "completion", "reward", "prompt_ids", "completion_ids", "logprobs", "group_id", "tools")


class TrlSft(Format):
    """`{messages}` or `{prompt, completion}` a row, with `tools` and `chat_template_kwargs` beside."""

    name = "trl-sft"
    purpose = "train"
    title = "TRL supervised fine-tuning (JSON lines of prompt and completion)"
    carries = TRANSCRIPT | {"trajectory.ext.trl", "context.tools"}

    def detect(self, document: Any) -> bool:
        if not isinstance(document, dict):
            return False
        return {"prompt", "completion"} <= document.keys() and not document.keys() & {
            "reward",
            "completion_ids",
            "label",
        }

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for _, row in json_lines(source):
            rest = without(row, "messages", "prompt", "completion", "tools")
            conversation = _conversation(self.name, row, options, loss, rest, _strings(row, "completion"))
            for raw in _messages(row.get("messages") or row.get("prompt"), "user"):
                add_openai(conversation, raw)
            for raw in _messages(row.get("completion"), "assistant"):
                add_openai(conversation, raw)
            yield from conversation.drafts()

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            transcript = view.transcript()
            answers = [index for index, said in enumerate(transcript) if said.message["role"] == "assistant"]
            if not answers:
                loss.lose("trajectory (no answer)", view.id, "nothing to learn: no assistant message")
                continue
            loss.items += 1
            report_off_line(view, transcript, loss)
            for said in transcript[answers[-1] + 1 :]:
                loss.lose(
                    "message (after the last answer)", messages.text(said.message), "a completion ends with an answer"
                )
            shown = [show(said, loss) for said in transcript[: answers[-1] + 1]]
            yield json_line(_row(view, content, {"prompt": shown[: answers[-1]], "completion": shown[answers[-1] :]}))


class TrlPreference(Format):
    """`{prompt, chosen, rejected}` a row; with an implicit prompt, both sides begin alike."""

    name = "trl-preference"
    purpose = "train"
    title = "TRL preference pairs (JSON lines of prompt, chosen, rejected)"
    carries = TRANSCRIPT | PAIR | {"trajectory.ext.trl", "context.tools"}

    def detect(self, document: Any) -> bool:
        return isinstance(document, dict) and {"chosen", "rejected"} <= document.keys()

    def has_annotation(self, annotation: Record) -> bool:
        return is_pair(annotation)

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for _, row in json_lines(source):
            chosen, rejected = _messages(row["chosen"], "assistant"), _messages(row["rejected"], "assistant")
            prompt = _messages(row.get("prompt"), "user")
            if "prompt" not in row:
                prompt, chosen, rejected = _split(chosen, rejected)
            if not chosen or not rejected:
                loss.lose("row (nothing to prefer)", row, "both sides say the same, or nothing")
                continue
            rest = without(row, "prompt", "chosen", "rejected", "tools")
            conversation = _conversation(self.name, row, options, loss, rest, _strings(row, "chosen"))
            for raw in prompt:
                add_openai(conversation, raw)
            add_pair(conversation, chosen, rejected)
            yield from conversation.drafts()

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            for pair in pairs(view, loss):
                loss.items += 1
                row = {
                    "prompt": [show(said, loss) for said in pair.prompt],
                    "chosen": [openai(pair.chosen)],
                    "rejected": [openai(pair.rejected)],
                }
                yield json_line(_row(view, content, row))


class TrlGrpo(Format):
    """A roll-out a row: `{prompt, completion, reward, prompt_ids, completion_ids, logprobs, group_id}`.

    The names are those of TRL's roll-out functions; a GRPO trainer that samples for itself needs `prompt` alone.
    """

    name = "trl-grpo"
    purpose = "train"
    title = "TRL GRPO roll-outs (JSON lines of prompt, completion, reward, token ids)"
    carries = TRANSCRIPT | {
        "trajectory.ext.trl", "trajectory.task.group_id", "context.tools", "event.tokens.prompt_token_ids",
        "event.tokens.completion_token_ids", "event.tokens.logprobs",
    }  # fmt: skip

    def detect(self, document: Any) -> bool:
        return (
            isinstance(document, dict)
            and "prompt" in document
            and bool(document.keys() & {"reward", "completion_ids", "group_id"} or document.keys() == {"prompt"})
        )

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward" and annotation.get("optimizable") is True

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for number, row in json_lines(source):
            rest = without(row, *_GROUP_COLUMNS)
            # the same answer may be sampled twice in a group: the row's place tells them apart
            header = {"task": {"group_id": str(row["group_id"])}} if "group_id" in row else {}
            keyed = {**row, "row": number}
            conversation = _conversation(self.name, keyed, options, loss, rest, _strings(row, "prompt"), **header)
            prompt = _messages(row["prompt"], "user")
            for raw in prompt:
                if raw is prompt[-1] and raw.get("role") == "user":
                    conversation.user(messages.from_openai(raw))
                else:  # what was said before is the prompt's, whoever said it: the row is one answer
                    conversation.given(messages.from_openai(raw))
            answer = self._answer(conversation, row)
            if row.get("reward") is not None:
                conversation.annotate(
                    "reward", "reward", {"kind": "environment"}, event_id=answer, value=float(row["reward"]),
                    optimizable=True,
                )  # fmt: skip
            yield from conversation.drafts()

    @staticmethod
    def _answer(conversation: Conversation, row: dict[str, Any]) -> str | None:
        said = _messages(row.get("completion"), "assistant")
        names = {"prompt_ids": "prompt_token_ids", "completion_ids": "completion_token_ids", "logprobs": "logprobs"}
        tokens = {ours: row[theirs] for theirs, ours in names.items() if row.get(theirs) is not None}
        for raw in said[:-1]:
            add_openai(conversation, raw)
        if said:
            return conversation.assistant(messages.from_openai(said[-1]), tokens=tokens)
        return None

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            rewards = [a for a in view.rewards() if self.has_annotation(a)]
            total = [a for a in rewards if "event_id" not in a["targets"][0]]
            for call in view.calls():
                if not call.get("a", {}).get("messages"):
                    loss.lose("event.llm_call (no answer)", call["id"], "nothing was sampled")
                    continue
                loss.items += 1
                own = [a for a in rewards if a["targets"][0].get("event_id") == call["id"]] or total
                row: dict[str, Any] = {
                    "prompt": [show(said, loss) for said in view.prompt(call)],
                    "completion": [openai(call["a"]["messages"][0])],
                }
                if own:
                    row["reward"] = float(own[-1]["value"])
                row |= view.token_columns(call, loss)
                if "group_id" in view.header.get("task", {}):
                    row["group_id"] = view.header["task"]["group_id"]
                yield json_line(_row(view, content, row))
            if not view.calls():
                yield json_line(_row(view, content, {"prompt": [show(said, loss) for said in view.transcript()]}))


def _conversation(
    name: str,
    row: dict[str, Any],
    options: ReadOptions,
    loss: LossReport,
    rest: dict[str, Any],
    strings: bool,
    **header: Any,
) -> Conversation:
    if strings:
        loss.note(
            "standard_form", why="text instead of messages: prompt taken as a user's, completion as an assistant's"
        )
    if rest:
        header["ext"] = {"trl": rest}
    return Conversation(name, content_key(row, options), options, loss, tools=row.get("tools"), **header)


def _row(view: TrajectoryView, content: ContentOf, row: dict[str, Any]) -> dict[str, Any]:
    tools = view.tools(content)
    return {**row, **({"tools": tools} if tools else {}), **view.ext("trl")}


def _strings(row: dict[str, Any], column: str) -> bool:
    return isinstance(row.get(column), str)


def _messages(value: Any, role: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    return [{"role": role, "content": value}] if isinstance(value, str) else list(value)


def _split(
    chosen: list[dict[str, Any]], rejected: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """What both sides begin with is the prompt."""
    length = 0
    while length < min(len(chosen), len(rejected)) and chosen[length] == rejected[length]:
        length += 1
    return chosen[:length], chosen[length:], rejected[length:]
