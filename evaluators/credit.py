"""Credit: which observation, prompt fragment, retrieval, tool call, memory item or guardrail contributed to an event?

Two answers. `contributions` walks the recorded causal links back: cheap, for any event, an indication. `leave_one_out`
asks what happens without a part, by running the decision again: an experiment, where something can run it again.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from evaluators.intervals import Interval, PairedCounts, paired_difference
from evaluators.rewards.links import Link, links

Kind = Literal[
    "observation", "prompt fragment", "retrieval", "tool call", "memory item", "skill", "guardrail", "hand-off",
    "decision",
]  # fmt: skip

_KINDS: dict[str, Kind] = {
    "user_message": "observation", "retrieval": "retrieval", "memory_read": "memory item",
    "memory_write": "memory item", "guardrail": "guardrail", "approval": "guardrail", "handoff": "hand-off",
    "llm_call": "decision",
}  # fmt: skip
"""Of events; every other operation is a tool call."""
_SURFACES: dict[str, Kind] = {
    "memory": "memory item",
    "skills": "skill",
    "guardrails": "guardrail",
    "tools": "tool call",
}
"""Of overlays; every other is a prompt fragment."""
_DISPOSITIONS = {"used": 4.0, "corrected": 4.0, "contradicted": 4.0, "ignored": -0.2}
"""What a `tool_result` label adds to an input's weight."""
_EARLIER = 0.25
"""Weight of what had been answered before, beside the 1 of what came last."""
_MOST_WORDS = 6
_WORD = re.compile(r"\w[\w.,:/@-]*\w")
_LOOKED_AT = 20_000
"""Characters of a text."""
_LEAST_SHARE = 0.001
"""Smaller shares are not worth a row."""

P = TypeVar("P")


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that led to the event asked about."""

    kind: Kind
    id: str
    """The event's, item's or edit's; a call's own system text is `<event>/system`."""
    share: float
    """Of all credit, which adds up to 1 with the event's own."""
    links: int
    """Causal links between it and the event."""
    evidence: str


class _Input(msgspec.Struct, frozen=True):
    """Something in front of an event: another event, or a part of its prompt."""

    kind: Kind
    id: str
    text: str
    rel: str
    event: str | None
    """Where the walk goes on."""
    weight: float = 1.0


def contributions(
    events: Sequence[Mapping[str, Any]],
    event_id: str,
    annotations: Iterable[Mapping[str, Any]] = (),
    *,
    decay: float = 0.5,
    known_links: Sequence[Link] | None = None,
) -> list[Contribution]:
    """What led to an event, largest share first; itself among them.

    A random walk back along the links: at each event, 1 - `decay` of what arrives stays (what was decided there), the
    rest goes on to its inputs by their weights. An input weighs 1, one from earlier in the conversation less; more for
    each telling word (numbers, codes, very long words) that it shares with the event and few others do, more when a
    `tool_result` label says that it was used, less when it was ignored. `events` are a trajectory's, resolved, in
    order; `known_links` those of the records as stored, which also know the earlier calls whose conversation a call
    goes on from. Raises `KeyError` for an unknown event.
    """
    by_id = {event["id"]: event for event in events}
    by_id[event_id]
    labels = _labels(annotations)
    causes: dict[str, list[Link]] = defaultdict(list)
    for link in links(events) if known_links is None else known_links:
        causes[link.event].append(link)
    arrived: dict[str, float] = {event_id: 1.0}
    rows: dict[str, Contribution] = {}
    distance = {event_id: 0}
    why = {event_id: "the event itself"}
    for event in reversed(events):
        mass = arrived.get(event["id"])
        if mass is None:
            continue
        inputs = _inputs(event, causes, by_id)
        kept = mass if not inputs else (1 - decay) * mass
        _add(rows, _kind(event["kind"]), event["id"], kept, distance[event["id"]], why[event["id"]])
        for given, (weight, evidence) in zip(inputs, _weights(inputs, _words(_said(event)), labels), strict=True):
            share = (mass - kept) * weight
            near = distance[event["id"]] + 1
            if given.event is None:
                _add(rows, given.kind, given.id, share, near, evidence)
                continue
            arrived[given.event] = arrived.get(given.event, 0.0) + share
            if near <= distance.get(given.event, near):
                distance[given.event], why[given.event] = near, evidence
    found = [row for row in rows.values() if row.share >= _LEAST_SHARE]
    return sorted(found, key=lambda row: (-row.share, row.links, row.id))


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What leaving one part out did."""

    part: Any
    state: Literal["helps", "harms", "no difference found", "not enough data"]
    difference: Interval
    """Success with the part minus success without it, on the same runs; `n` of them could be judged both times."""
    with_it: float
    without: float
    unknown: int
    """Runs that couldn't be judged with it or without."""


def leave_one_out(
    parts: Sequence[P],
    rerun: Callable[[P | None], Sequence[float | bool | None]],
    *,
    alpha: float = 0.05,
    min_pairs: int = 8,
) -> list[Effect]:
    """How much each part helps: the same runs with everything and without that part, most helpful first.

    `rerun` makes the runs again without a part (None: with everything) under the same seeds, and gives their outcomes,
    1 or 0, in the same order each time; None where nothing can judge one. Paired intervals at `alpha` over all parts
    together (Bonferroni). Raises `ValueError` when the runs don't correspond.
    """
    if not parts:
        return []
    whole = list(rerun(None))
    each = alpha / len(parts)
    found = [_effect(part, whole, list(rerun(part)), each, min_pairs) for part in parts]
    return sorted(found, key=lambda effect: -effect.difference.value)


def effect_rows(effects: Sequence[Effect], name: Callable[[Any], str] = str) -> list[dict[str, Any]]:
    """Effects as rows a person reads."""
    return [
        {"part": name(e.part), "effect": e.state, "difference": str(e.difference), "with": round(e.with_it, 3),
         "without": round(e.without, 3), "unknown": e.unknown}
        for e in effects
    ]  # fmt: skip


def contribution_rows(found: Sequence[Contribution]) -> list[dict[str, Any]]:
    """Contributions as rows a person reads."""
    return [
        {"share": f"{c.share:.0%}", "kind": c.kind, "id": c.id, "links": c.links, "evidence": c.evidence} for c in found
    ]


def _effect(
    part: Any, whole: Sequence[float | None], without: Sequence[float | None], alpha: float, min_pairs: int
) -> Effect:
    if len(whole) != len(without):
        raise ValueError(f"{len(whole)} runs with everything and {len(without)} without {part}: they are no pairs")
    pairs = [(a, b) for a, b in zip(whole, without, strict=True) if a is not None and b is not None]
    if not {value for pair in pairs for value in pair} <= {0, 1}:
        raise ValueError("outcomes are 0 or 1, or None where nothing can judge a run")
    table = Counter((bool(a), bool(b)) for a, b in pairs)
    counts = PairedCounts(table[True, True], table[True, False], table[False, True], table[False, False])
    difference, n = paired_difference(counts, alpha), len(pairs)
    state: Any = "no difference found"
    if n < min_pairs:
        state = "not enough data"
    elif difference.low > 0 or difference.high < 0:
        state = "helps" if difference.low > 0 else "harms"
    return Effect(
        part=part,
        state=state,
        difference=difference,
        with_it=sum(a for a, _ in pairs) / n if n else float("nan"),
        without=sum(b for _, b in pairs) / n if n else float("nan"),
        unknown=len(whole) - n,
    )


def _inputs(
    event: Mapping[str, Any], causes: Mapping[str, Sequence[Link]], by_id: Mapping[str, Mapping[str, Any]]
) -> list[_Input]:
    """What was in front of an event: its causes, and of a model call the rest of its prompt.

    That is the conversation before, which earlier calls were given, and the parts that are no events.
    """
    given, earlier, front = [], {}, [(link, False) for link in causes[event["id"]]]
    while front:
        link, before = front.pop()
        if link.cause not in by_id or link.cause in earlier:
            continue
        earlier[link.cause] = link
        before = before or link.rel == "prefix"
        cause = by_id[link.cause]
        rel, weight = ("conversation", _EARLIER) if before else (link.rel, 1.0)
        given.append(_Input(_kind(cause["kind"]), link.cause, _said(cause), rel, link.cause, weight))
        if link.rel == "prefix":
            front += [(next, True) for next in causes[link.cause]]
    observed = event.get("o") or {}
    system = observed.get("system_instructions")
    system = _texts(system) if system else _system(observed.get("messages"))
    if system and event["kind"] == "llm_call":
        given.append(_Input("prompt fragment", f"{event['id']}/system", system, "system text", None))
    for overlay in (event.get("ext") or {}).get("overlays") or []:
        if not overlay.get("skipped"):
            given += _of_overlay(overlay)
    return given


def _of_overlay(overlay: Mapping[str, Any]) -> list[_Input]:
    surface = str(overlay.get("surface") or overlay.get("kind") or "overlay")
    kind = _SURFACES.get(surface, "prompt fragment")
    items = [i.get("id") if isinstance(i, Mapping) else i for i in overlay.get("items") or []]
    ids = [str(id) for id in items if id] or [str(overlay.get("id") or surface)]
    text = str(overlay.get("text") or "")
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    texts = lines if len(lines) == len(ids) else [text] * len(ids)
    return [_Input(kind, id, told, f"overlay {surface}", None) for id, told in zip(ids, texts, strict=True)]


def _weights(inputs: Sequence[_Input], said: set[str], labels: Mapping[str, str]) -> list[tuple[float, str]]:
    """(share of the inputs' weight, evidence) of each; a word that several inputs have counts for each the less."""
    shared = [_words(given.text) & said for given in inputs]
    owners = Counter(word for words in shared for word in words)
    weights, evidence = [], []
    for given, words in zip(inputs, shared, strict=True):
        telling = sorted(words, key=lambda word: (owners[word], word))[:_MOST_WORDS]
        label = labels.get(given.event or "")
        weights.append(given.weight + sum(1 / owners[word] for word in telling) + _DISPOSITIONS.get(label or "", 0.0))
        told = [given.rel, *([f"its result was {label}"] if label else [])]
        evidence.append("; ".join([*told, *([f"shares {', '.join(telling)}"] if telling else [])]))
    total = sum(weights)
    return [(weight / total, told) for weight, told in zip(weights, evidence, strict=True)]


def _add(rows: dict[str, Contribution], kind: Kind, id: str, share: float, distance: int, evidence: str) -> None:
    before = rows.get(id)
    if before is not None:
        share, distance, evidence = share + before.share, min(distance, before.links), before.evidence
    rows[id] = Contribution(kind=kind, id=id, share=share, links=distance, evidence=evidence)


def _labels(annotations: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {
        target["event_id"]: str(a.get("label"))
        for a in annotations
        if a.get("name") == "tool_result"
        for target in a.get("targets") or []
        if target.get("event_id")
    }


def _kind(event_kind: str) -> Kind:
    return _KINDS.get(event_kind, "tool call")


def _said(event: Mapping[str, Any]) -> str:
    """An event's own words: a message, an answer with its calls, an operation's arguments and result."""
    observed, action, outcome = event.get("o") or {}, event.get("a") or {}, event.get("y") or {}
    if event["kind"] == "user_message":
        return _texts(observed.get("messages"))
    if event["kind"] == "llm_call":
        return _texts(action.get("messages"))
    return _texts([action.get("arguments"), outcome.get("result"), (outcome.get("error") or {}).get("message")])


def _system(messages: Any) -> str:
    told = messages if isinstance(messages, list) else []
    return _texts([m for m in told if isinstance(m, Mapping) and m.get("role") in ("system", "developer")])


def _texts(value: Any) -> str:
    """The strings and numbers in a JSON value."""
    if isinstance(value, str):
        return value[:_LOOKED_AT]
    if isinstance(value, Mapping):
        return " ".join(_texts(item) for key, item in value.items() if key not in ("id", "type", "role"))[:_LOOKED_AT]
    if isinstance(value, list | tuple):
        return " ".join(map(_texts, value))[:_LOOKED_AT]
    return "" if value is None or isinstance(value, bool) else json.dumps(value, default=str)


def _words(text: str) -> set[str]:
    """Words that an answer would hardly hold by chance: with a digit, in capitals, or long."""
    found = _WORD.findall(text[:_LOOKED_AT])
    return {w for w in found if any(map(str.isdigit, w)) or (w.isupper() and len(w) > 2) or len(w) >= 12}
