"""tau2-bench results: one JSON object `{timestamp, info, tasks, simulations}` (sierra-research/tau2-bench).

A run's messages have times, usage and cost; arguments are objects here, while the provider's raw answer has them as the
text the model wrote: that text is kept, the rest of the raw answer is a copy and is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from atdp.convert.base import ContentOf, ConversionError, Format, Item, ReadOptions, Record, Source, json_document
from atdp.convert.loss import LossReport
from atdp.convert.tau2.reading import FORMAT, REWARD, Run
from atdp.convert.tau2.writing import simulation
from atdp.convert.transcripts import TRANSCRIPT
from atdp.convert.view import trajectories

__all__ = ["FORMAT", "Tau2"]


class Tau2(Format):
    """tau2-bench: simulations with times, usage, cost, per-check rewards."""

    name = FORMAT
    title = "tau2-bench results (JSON object with simulations)"
    carries = TRANSCRIPT | {
        "trajectory.task.id", "trajectory.task.trial", "trajectory.ext.tau2", "annotation.ext.tau2",
        "event.time", "event.ext.tau2", "event.m.usage.input_tokens", "event.m.usage.output_tokens", "event.m.cost_usd",
        "event.y.reason", "event.y.error.type", "event.y.status", "event.a.params", "context.model.name",
        "context.env", "trajectory.time", "annotation.time", "event.y.finish_reason",
    }  # fmt: skip

    def detect(self, document: Any) -> bool:
        return isinstance(document, dict) and {"simulations", "tasks", "info"} <= document.keys()

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        document = json_document(source)
        if not self.detect(document):
            raise ConversionError("tau2-bench results are an object with info, tasks and simulations")
        tasks = {str(task["id"]): task for task in document["tasks"]}
        order = {id: index for index, id in enumerate(tasks)}
        for run in document["simulations"]:
            task = tasks.pop(str(run["task_id"]), None)
            index = order.get(str(run["task_id"]))
            yield from Run(document, run, task, index, options, loss).drafts()
        for id in tasks:
            loss.lose("tasks", id, "a task without a run is no trajectory")

    def has_annotation(self, annotation: Record) -> bool:
        return annotation["kind"] == "reward" and (annotation["name"] == REWARD or "tau2" in annotation.get("ext", {}))

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        head: dict[str, Any] = {}
        tasks: dict[int, Any] = {}
        simulations = []
        for view in trajectories(records):
            loss.items += 1
            kept = view.ext("tau2")
            head = head or {key: kept[key] for key in ("timestamp", "info") if key in kept}
            if "task" in kept:
                tasks[kept.get("task_index", len(tasks))] = kept["task"]
            simulations.append(simulation(view, kept, loss))
        info = head.get("info", {})
        document = {**head, "info": info, "tasks": [tasks[i] for i in sorted(tasks)], "simulations": simulations}
        yield orjson.dumps(document)
