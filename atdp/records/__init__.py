"""The four record types of ATDP 1.0 as frozen structs: trajectory, context, event, annotation.

A *draft* is a record before it has its place in the chain; the store adds `seq`, `prev_hash`
and `hash`. An absent optional field is absent from the JSON too. The JSON Schema in this
package is generated from these structs (`atdp.schema`).
"""

from atdp.records.annotation import Annotation, AnnotationDraft, Scale, Source, Target
from atdp.records.common import VERSION, Count, Digest, Id, Leaf, Time
from atdp.records.context import (
    Context,
    ContextBody,
    HarnessInfo,
    Model,
    PromptInfo,
    SkillInfo,
    ToolInfo,
)
from atdp.records.event import (
    Action,
    Actor,
    Cause,
    Error,
    Event,
    EventDraft,
    HarnessState,
    Kind,
    Metadata,
    Observation,
    Outcome,
    Replay,
    Status,
    Usage,
)
from atdp.records.governance import Basis, Decision, Eligibility, Gov, Redaction, Retention
from atdp.records.message import Changed, Message, MessagePrefix, Part
from atdp.records.standin import Redacted, Ref, Sealed
from atdp.records.tokens import Ids, Logprobs, Tokens
from atdp.records.trajectory import Agent, Origin, Parent, Task, Trajectory, TrajectoryDraft

Record = Trajectory | Context | Event | Annotation
"""One line of an export."""

Draft = TrajectoryDraft | Context | EventDraft | AnnotationDraft
"""What a producer hands to the store."""

__all__ = [
    "VERSION",
    "Action",
    "Actor",
    "Agent",
    "Annotation",
    "AnnotationDraft",
    "Basis",
    "Cause",
    "Changed",
    "Context",
    "ContextBody",
    "Count",
    "Decision",
    "Digest",
    "Draft",
    "Eligibility",
    "Error",
    "Event",
    "EventDraft",
    "Gov",
    "HarnessInfo",
    "HarnessState",
    "Id",
    "Ids",
    "Kind",
    "Leaf",
    "Logprobs",
    "Message",
    "MessagePrefix",
    "Metadata",
    "Model",
    "Observation",
    "Origin",
    "Outcome",
    "Parent",
    "Part",
    "PromptInfo",
    "Record",
    "Redacted",
    "Redaction",
    "Ref",
    "Replay",
    "Retention",
    "Scale",
    "Sealed",
    "SkillInfo",
    "Source",
    "Status",
    "Target",
    "Task",
    "Time",
    "Tokens",
    "ToolInfo",
    "Trajectory",
    "TrajectoryDraft",
    "Usage",
]
