"""Judges' verdicts on tau2-bench runs, one a line: they become late annotations of the runs they are about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from atdp.convert.base import ContentOf, Format, Item, Late, ReadOptions, Record, Source, json_line, json_lines, without
from atdp.convert.loss import LossReport
from atdp.convert.tau2 import FORMAT as TAU2
from atdp.convert.view import trajectories
from atdp.ids import derived_id
from atdp.records import AnnotationDraft

_VALUES = {"pass": 1.0, "satisfied": 1.0, "fail": 0.0}
"""Verdicts the source itself counts for or against (its `agreement`); of any other word it counts nothing."""
_TOLD = ("simulation_id", "judge_verdict", "judge_justification", "judge_model", "judge_prompt_name")


class JudgeVerdicts(Format):
    """Lines `{simulation_id, judge_verdict, judge_justification, judge_model, judge_prompt_name, …}`.

    A judge is not the environment: its rewards are not optimizable (four prompts of one model pass 46, 35, 29 and
    10 runs where the environment passes 23).
    """

    name = "judge-verdicts"
    title = "LLM judges' verdicts on tau2-bench runs (JSON lines)"
    carries = frozenset(
        {"annotation.kind", "annotation.name", "annotation.targets", "annotation.source", "annotation.value",
         "annotation.label", "annotation.explanation", "annotation.scale", "annotation.optimizable",
         "annotation.ext.judge", "annotation.time"}
    )  # fmt: skip

    def detect(self, document: Any) -> bool:
        return isinstance(document, dict) and {"simulation_id", "judge_verdict"} <= document.keys()

    def has_annotation(self, annotation: Record) -> bool:
        return "judge" in annotation.get("ext", {})

    def items(self, source: Source, options: ReadOptions, loss: LossReport) -> Iterator[Item]:
        for _, line in json_lines(source):
            loss.items += 1
            verdict = str(line["judge_verdict"]).lower()
            if line.get("agreement") is False:
                loss.note("disagrees", line["simulation_id"], "judge and environment disagree: the verdict is no truth")
            if verdict not in _VALUES:
                loss.note("verdict", verdict, "not known as good or bad: kept as a label without a value")
            trajectory = derived_id("tr", TAU2, str(line["simulation_id"]))
            judge = str(line.get("judge_model", "unknown"))
            prompt = str(line.get("judge_prompt_name", "verdict"))
            value = {"value": _VALUES[verdict]} if verdict in _VALUES else {}
            draft = {
                "atdp": "1.0",
                "record": "annotation",
                "id": derived_id("an", trajectory, "judge", judge, prompt),
                "trajectory_id": trajectory,
                "kind": "reward",
                "name": f"judge.{prompt}",
                "targets": [{"trajectory_id": trajectory}],
                "source": {"kind": "llm_judge", "id": judge, "version": prompt},
                "time": options.time,
                "label": str(line["judge_verdict"]),
                "scale": {"min": 0, "max": 1, "higher_is_better": True},
                "optimizable": False,
                "ext": {"judge": without(line, *_TOLD[1:])},
                **value,
            }
            if line.get("judge_justification"):
                draft["explanation"] = line["judge_justification"]
            yield Late("trajectory", trajectory, msgspec.convert(draft, AnnotationDraft))
        loss.note(
            "time",
            why="no times in the source; the records have the file's own",
            count=loss.items,
        )

    def lines(self, records: Iterable[Record], content: ContentOf, loss: LossReport) -> Iterator[bytes]:
        for view in trajectories(records):
            for annotation in view.annotations:
                if self.has_annotation(annotation):
                    loss.items += 1
                    yield json_line(
                        {
                            **annotation["ext"]["judge"],
                            "judge_verdict": annotation["label"],
                            "judge_model": annotation["source"]["id"],
                            "judge_prompt_name": annotation["source"]["version"],
                            **(
                                {"judge_justification": annotation["explanation"]}
                                if "explanation" in annotation
                                else {}
                            ),
                        }
                    )
