"""A case: one recorded decision with everything later said about it.

Cases are what statistics, diagnosis, training sets and replay are made of. They are read from the
records of one trajectory, resolved (references loaded, prefixes expanded); the trajectory itself is
never changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from atdp import messages as atdp_messages
from atdp.annotations import in_force
from atdp.eligibility import eligible
from evaluators import tasks
from evaluators.facts import same_quantities
from evaluators.rewards import DEFAULT_RULE, RewardRule, Signal, resolve
from evaluators.steps import Step, steps_by_decision

Key = tuple[str, str]
"""(tenant, id). An id is unique within a tenant only: imports keep the ids they come with."""


class Call(msgspec.Struct, frozen=True):
    """A tool call; `arguments` is None when they are not one JSON object."""

    name: str
    arguments: dict[str, Any] | None


class Action(msgspec.Struct, frozen=True):
    text: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def malformed(self) -> bool:
        """The model meant to call a tool and nobody could execute it."""
        return any(call.arguments is None for call in self.calls) or "<tool_call>" in self.text

    @property
    def kind(self) -> str:
        """What statistics group by: the tool's name, or `answer`."""
        return self.calls[0].name if self.calls else "answer"


class Remark(msgspec.Struct, frozen=True):
    """A user's correction of the decision, in their words."""

    id: str
    text: str
    at: str


class Case(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    agent: str
    trajectory_id: str
    session_id: str
    event_id: str
    at: str
    agent_version: str
    role: str
    purpose: str
    status: str
    messages: list[dict[str, Any]]
    """As the client sent them (OpenAI form), before any overlay."""
    tools: list[dict[str, Any]]
    params: dict[str, Any]
    prompt_token_ids: list[int]
    """As the model got them, overlays included; empty when the upstream gave none."""
    completion_token_ids: list[int]
    """As the model gave them; empty unless they are complete."""
    overlay_text: str
    """What overlays added to the prompt."""
    action: Action
    reward: float | None
    """By the agent's rule: its own, else its trajectory's; None while no signal counts."""
    judged_at: str
    """When the reward came in; empty while there is none."""
    parent_event_id: str | None
    """For a shadow's answer: the live decision it was asked beside."""
    corrections: tuple[Remark, ...]
    demonstration: dict[str, Any] | None
    """The assistant message somebody would have wanted instead."""
    demonstration_id: str | None
    trainable: bool
    latency_ms: float
    input_tokens: int
    output_tokens: int
    steps: tuple[Step, ...] = ()
    """What followed it until the user spoke again: tool results, and later answers of the same turn."""
    signals: tuple[Signal, ...] = ()
    """What was said about this decision or its trajectory, whether the rule counts it or not."""
    reward_rule: str = ""
    """Digest of the rule that made the reward of the signals."""
    reward_source: str = ""
    reward_confidence: float | None = None
    later_ms: float = 0.0
    """Of the model calls that followed in the same turn."""
    later_tokens: tuple[int, int] | None = (0, 0)
    """Prompt and completion tokens of these; None when one did not report its usage."""

    @property
    def key(self) -> Key:
        """What it is known by among the decisions of several tenants."""
        return self.tenant, self.event_id

    @property
    def trajectory(self) -> Key:
        return self.tenant, self.trajectory_id

    @property
    def session(self) -> Key:
        return self.tenant, self.session_id

    @property
    def request(self) -> str:
        """The user's last words."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return _text(message.get("content"))
        return ""

    @property
    def shown(self) -> str:
        """Everything the model could read its answer off: the client's messages and the overlays."""
        return "\n".join([*(_text(m.get("content")) for m in self.messages), self.overlay_text])

    @property
    def task_key(self) -> str:
        return tasks.task_key(self.request)

    @property
    def entities(self) -> frozenset[str]:
        return tasks.entities(self.request)

    @property
    def success(self) -> bool | None:
        return None if self.reward is None else self.reward > 0.5

    @property
    def taught(self) -> Action | None:
        """What a trainer may learn from this case: the demonstrated action, else the model's own successful one."""
        if self.demonstration is not None:
            return self.wanted
        return self.action if self.success and self.completion_token_ids else None

    @property
    def wanted(self) -> Action | None:
        """The demonstrated action, if somebody demonstrated one."""
        return None if self.demonstration is None else action_of(self.demonstration)


def cases_of(
    tenant: str,
    records: Sequence[dict[str, Any]],
    tools_of: Callable[[str], list[dict[str, Any]]],
    *,
    rule: RewardRule = DEFAULT_RULE,
    as_of: str | None = None,
) -> list[Case]:
    """The decisions of one trajectory: each model call that answers a user.

    A call made to read a tool's result belongs to the decision before it. A signal that names an event
    belongs to that decision, one that names only the trajectory to the last. What a decision is worth says
    `rule`, of what was written until `as_of`. `tools_of` gives a context's tools as the client sent them.
    """
    header = next((r for r in records if r["record"] == "trajectory"), {})
    annotations = [r for r in records if r["record"] == "annotation"]
    signals = in_force(annotations, as_of)
    events = [r for r in records if r["record"] == "event"]
    calls = [r for r in events if r["kind"] == "llm_call"]
    decisions = [(e, m) for e in calls if (m := _asked(e)) and m[-1].get("role") != "tool"]
    steps = steps_by_decision(events, [e["id"] for e, _ in decisions])
    trainable = eligible([header, *calls, *in_force(annotations)], "train")
    rewards = resolve(annotations, rule, as_of, events)
    out = []
    for position, (event, messages) in enumerate(decisions):
        last = position == len(decisions) - 1
        mine = [s for s in signals if _about(s, event["id"], last)]
        judged = rewards.of(event["id"])
        demonstration = next((s for s in reversed(mine) if s.get("name") == "demonstration"), None)
        tags = (event.get("m") or {}).get("tags") or {}
        tokens = event.get("tokens") or {}
        usage = (event.get("m") or {}).get("usage") or {}
        prompt_ids = tokens.get("prompt_token_ids") or []
        completion_ids = tokens.get("completion_token_ids") or []
        followed = {step.event_id for step in steps[event["id"]] if step.kind == "llm_call"}
        later = [call for call in calls if call["id"] in followed] if followed else []
        incomplete = bool((event.get("ext") or {}).get("tokens_incomplete"))
        out.append(
            Case(
                tenant=tenant,
                agent=tags.get("agent") or (header.get("agent") or {}).get("name") or "",
                trajectory_id=event["trajectory_id"],
                session_id=header.get("session_id") or event["trajectory_id"],
                event_id=event["id"],
                at=event["time"],
                agent_version=str(tags.get("agent_version", "")),
                role=tags.get("role", "champion"),
                purpose=tags.get("purpose", "serve"),
                status=event["y"]["status"],
                messages=messages,
                tools=tools_of(event["ctx"]),
                params=(event.get("a") or {}).get("params") or {},
                prompt_token_ids=prompt_ids if isinstance(prompt_ids, list) else [],
                completion_token_ids=completion_ids if isinstance(completion_ids, list) and not incomplete else [],
                overlay_text="\n".join(o.get("text", "") for o in (event.get("ext") or {}).get("overlays", [])),
                action=action_of(_answered(event)),
                reward=judged.reward if judged else None,
                judged_at=judged.at if judged else "",
                parent_event_id=(header.get("parent") or {}).get("event_id"),
                corrections=tuple(
                    Remark(id=s["id"], text=s.get("explanation") or "", at=s.get("observed_at") or s["time"])
                    for s in mine
                    if s.get("name") == "user_correction"
                ),
                demonstration=((demonstration or {}).get("ext") or {}).get("demonstration"),
                demonstration_id=demonstration["id"] if demonstration else None,
                trainable=trainable and event["y"]["status"] == "ok",
                latency_ms=float(event.get("duration_ms") or 0.0),
                input_tokens=int(usage.get("input_tokens") or len(prompt_ids)),
                output_tokens=int(usage.get("output_tokens") or 0),
                steps=steps[event["id"]],
                signals=rewards.about([event["id"], *(step.event_id for step in steps[event["id"]])]),
                reward_rule=rewards.rule,
                reward_source=judged.source if judged else "",
                reward_confidence=judged.confidence if judged else None,
                later_ms=sum(float(call.get("duration_ms") or 0.0) for call in later),
                later_tokens=_tokens(later),
            )
        )
    return out


def action_of(message: dict[str, Any] | None) -> Action:
    """The action in an OpenAI assistant message."""
    if not message:
        return Action()
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        calls.append(Call(name=function.get("name") or "", arguments=_arguments(function.get("arguments"))))
    return Action(text=_text(message.get("content")), calls=tuple(calls))


def same_action(a: Action, b: Action) -> bool:
    """The same calls with the same arguments; without calls, the same words or the same quantities."""
    if a.calls or b.calls:
        return not (a.malformed or b.malformed) and a.calls == b.calls
    return _folded(a.text) == _folded(b.text) or same_quantities(a.text, b.text)


def _tokens(calls: Sequence[dict[str, Any]]) -> tuple[int, int] | None:
    """Prompt and completion tokens of all of them; None when one says nothing of them."""
    usages = [(call.get("m") or {}).get("usage") or {} for call in calls]
    if not all(usage.get("input_tokens") for usage in usages):
        return None
    return sum(int(u["input_tokens"]) for u in usages), sum(int(u.get("output_tokens") or 0) for u in usages)


def _asked(event: dict[str, Any]) -> list[dict[str, Any]]:
    return [atdp_messages.to_openai(m) for m in (event.get("o") or {}).get("messages") or []]


def _answered(event: dict[str, Any]) -> dict[str, Any] | None:
    """The first choice; a call that asked for several is judged by the one agents read."""
    choices = (event.get("a") or {}).get("messages") or []
    return atdp_messages.to_openai(choices[0]) if choices else None


def _arguments(raw: Any) -> dict[str, Any] | None:
    if isinstance(raw, dict):
        return raw
    try:
        value = json.loads(raw)
    except (TypeError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _about(signal: dict[str, Any], event_id: str, last: bool) -> bool:
    named = [t["event_id"] for t in signal.get("targets") or [] if t.get("event_id")]
    return event_id in named if named else last


def _folded(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".!")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return ""
