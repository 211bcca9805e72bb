"""ATIF, the Agent Trajectory Interchange Format (Harbor, RFC 0001): one JSON object a trajectory.

Written as v1.7: what every reader of 1.5 to 1.8 takes. A step is what one party said; an agent's step holds its calls
and their results. Token ids and metrics have the same names there as here; rewards and events that no step has go to
`extra.atdp`, which ATIF allows on the trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from atdp.convert.atif.reading import Run
from atdp.convert.atif.writing import document_of
from atdp.convert.base import ContentOf, Format, Item, ReadOptions, Record, Source, json_documents
from atdp.convert.loss import LossReport
from atdp.convert.transcripts import TRANSCRIPT
from atdp.convert.view import trajectories


class Atif(Format):
    """A JSON object, or JSON lines of them."""

    name = "atif"
    title = "ATIF trajectories (JSON object, or JSON lines)"
    carries = TRANSCRIPT | {
        "event.time", "event.m.usage.input_tokens", "event.m.usage.output_tokens",
        "event.m.usage.cache_read_input_tokens", "event.m.cost_usd", "event.tokens.prompt_token_ids",
        "event.tokens.completion_token_ids", "event.tokens.logprobs", "event.ext.atif", "event.y.status",
        "trajectory.time", "trajectory.session_id", "trajectory.agent.version", "trajectory.agent.name",
        "trajectory.task", "trajectory.ext.atif", "context.model.name", "context.tools", "annotation.time",
        "annotation.label", "annotation.explanation", "annotation.observed_at", "annotation.confidence",
    }  # fmt: skip

    def detect(self, document: Any) -> bool:
        return isinstance(document, dict) and (
            str(document.get("schema_version", "")).startswith("ATIF-")
            or ({"steps", "agent"} <= document.keys() and all("step_id" in step for step in document["steps"][:1]))
        )

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward"

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for document in json_documents(source):
            yield from self._trajectory(document, options, loss)

    def _trajectory(self, document: dict[str, Any], options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        yield from Run(document, options, loss).drafts()
        for child in document.get("subagent_trajectories") or ():
            loss.note("subagent", child.get("trajectory_id"), "a sub-agent's trajectory is one of its own")
            yield from self._trajectory(child, options, loss)

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        views = list(trajectories(records))
        for view in views:
            document = document_of(view, content, loss)
            if document is None:
                loss.lose("trajectory (no step)", view.id, "ATIF needs at least one step")
                continue
            loss.items += 1
            if len(views) == 1:
                yield orjson.dumps(document, option=orjson.OPT_INDENT_2)
            else:
                yield orjson.dumps(document) + b"\n"
