"""Tools: what the model is told about the client's own tools, where calls were rejected or misrouted.

Extractive: bounds of an argument are read off values that were wrong and then right (an example shows their form, never
somebody's value), or off the tool's own words; hints off requests for which people showed another tool. What the
client's schema would not accept is told in words only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from evaluators.cases import Case, Key
from evaluators.diagnosis.outcomes import Outcome, outcomes_of, read_only
from evaluators.intervals import wilson
from evoplane.settings import Settings
from flows.interventions.base import Evidence, Proposal, Surface
from flows.interventions.repairs import Repair, accepted_values, constraint, repairs
from flows.interventions.sources import everywhere, made_from, sessions_of, told_apart
from registry.manifest import Manifest, ToolOverlay
from services.router.overlays import HINT, NotNarrower, narrowed

_RISK = "read by the model with every request that has the tool; a bound that is too narrow keeps right calls away"


class Tools(Surface):
    surface = "tools"

    def cost(self, config: Settings) -> float:
        return config.surfaces.tools_cost

    def risk(self, config: Settings) -> float:
        return config.surfaces.tools_risk

    def propose(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        """One proposal for all arguments, since one cause may show in many, and one for each pair of tools mistaken."""
        found = [*_arguments(evidence, config), *_routes(evidence, config)]
        made = [self._proposal(each, evidence.manifest, config) for each in found]
        return [p for p in made if p is not None][: config.surfaces.max_proposals]

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        overlays = {overlay.name: overlay for overlay in manifest.tools}
        for given in proposal.content["tools"]:
            overlays[given["name"]] = _merged(overlays.get(given["name"]), given)
        return msgspec.structs.replace(manifest, tools=tuple(overlays.values()))

    def _proposal(self, change: _Change, manifest: Manifest, config: Settings) -> Proposal | None:
        known = {overlay.name: overlay for overlay in manifest.tools}
        tools = [t for t in change.tools if _merged(known.get(t["name"]), t) != known.get(t["name"])]
        if not tools or len(msgspec.json.encode(tools)) > config.surfaces.max_bytes:
            return None
        return Proposal(
            surface=self.surface,
            summary=change.summary,
            diff="\n".join(line for tool in tools for line in _diff(tool)) + f"\n  {change.why}",
            content={"tools": tools[: config.surfaces.max_items]},
            cost=self.cost(config),
            risk=_RISK,
            risk_penalty=self.risk(config),
            source_sessions=change.sessions,
            evidence=change.evidence,
        )


class _Change(msgspec.Struct, frozen=True):
    summary: str
    tools: list[dict[str, Any]]
    why: str
    sessions: tuple[Key, ...]
    evidence: tuple[str, ...]


_OF_NOBODY = frozenset({"type"})
"""Bounds that hold no value: all others may be the own ones of the tenant that met them."""
_NAMED = frozenset({"enum", "minimum", "maximum"})
"""Bounds that are read off what a tool said."""


def _arguments(evidence: Evidence, config: Settings) -> list[_Change]:
    groups: dict[tuple[str, str], list[Repair]] = defaultdict(list)
    for repair in repairs(evidence.current):
        groups[repair.tool, repair.argument].append(repair)
    by_tool: dict[str, list[tuple[str, dict[str, Any], str, list[Case]]]] = defaultdict(list)
    for (tool, argument), found in sorted(groups.items()):
        cases = [r.case for r in found]
        if len(sessions_of(cases)) < config.surfaces.min_sessions:
            continue
        told = _told(evidence.current, tool, argument, found, shared=everywhere(cases, evidence.current))
        if told is not None:
            by_tool[tool].append((argument, *told, cases))
    cases = [case for arguments in by_tool.values() for *_, mine in arguments for case in mine]
    if not cases:
        return []
    sessions = sessions_of(cases)
    said = [f"{tool}({a}): {why}" for tool, arguments in by_tool.items() for a, _, why, _ in arguments]
    overlays = [
        _overlay(tool, [c for *_, mine in arguments for c in mine], arguments={a: p for a, p, _, _ in arguments})
        for tool, arguments in by_tool.items()
    ]
    return [
        _Change(
            summary=f"arguments bounded: {'; '.join(said)}"[:200],
            tools=overlays,
            why=f"wrong, then right, in {len(sessions)} sessions",
            sessions=made_from(sessions, config.surfaces.min_sessions),
            evidence=tuple(sorted({case.event_id for case in cases})),
        )
    ]


def _told(
    cases: Sequence[Case], tool: str, argument: str, found: Sequence[Repair], *, shared: bool
) -> tuple[dict[str, Any], str] | None:
    """What the schema of the argument gets, and why; None when the values don't tell what was wrong."""
    right = [value for value, _ in accepted_values(cases, tool, argument)]
    wrong = [repair.given for repair in found if repair.given is not None]
    if not right:
        return None
    bounds: dict[str, Any] = {}
    words = "Always give it."
    if 2 * len(wrong) >= len(found):
        rule = constraint(wrong, right, [repair.error for repair in found])
        if rule is None or (not shared and not _OF_NOBODY.issuperset(rule[0])):
            return None
        bounds, words = rule
        if not _NAMED.isdisjoint(bounds) and not _all_say(bounds, cases, tool, argument, found):
            return None
    schemas = _schemas(cases, tool, argument)
    if not schemas:
        return None
    if not all(_narrows(schema, bounds, strict) for schema, strict in schemas):
        bounds = {}
    return {**bounds, HINT: words}, words


def _all_say(bounds: dict[str, Any], cases: Sequence[Case], tool: str, argument: str, found: Sequence[Repair]) -> bool:
    """Does what each tenant met come to these bounds? One tenant's tool may name other values, or another limit."""
    for tenant in {repair.case.tenant for repair in found}:
        mine = [repair for repair in found if repair.case.tenant == tenant]
        right = [value for value, case in accepted_values(cases, tool, argument) if case.tenant == tenant]
        rule = constraint([r.given for r in mine if r.given is not None], right, [r.error for r in mine])
        if rule is None or rule[0] != bounds:
            return False
    return True


def _narrows(schema: dict[str, Any], bounds: dict[str, Any], strict: bool) -> bool:
    try:
        narrowed(schema, bounds, strict=strict)
    except NotNarrower:
        return False
    return True


def _schemas(cases: Sequence[Case], tool: str, argument: str) -> list[tuple[dict[str, Any], bool]]:
    """Each tenant's schema of the argument as its client last sent it, and whether it is compiled."""
    last: dict[str, tuple[dict[str, Any], bool]] = {}
    for case in cases:
        for sent in case.tools:
            function = sent.get("function", sent)
            if function.get("name") == tool:
                schema = function.get("parameters") or function.get("input_schema") or {}
                found = (schema.get("properties") or {}).get(argument)
                if isinstance(found, dict):
                    last[case.tenant] = found, bool(function.get("strict"))
    return list(last.values())


def _routes(evidence: Evidence, config: Settings) -> list[_Change]:
    outcomes = outcomes_of(evidence.current, read_only(evidence.current))
    pairs: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        pair = _mistaken(outcome)
        if pair is not None:
            pairs[pair].append(outcome)
    changes = []
    for (wrong, right), members in sorted(pairs.items(), key=lambda each: (-len(each[1]), each[0])):
        wanting = [o for o in outcomes if any(c.name == right for c in o.wanted or (() if o.failed else o.done))]
        share = wilson(len(members), len(wanting), config.monitor.alpha)
        sessions = sessions_of([o.case for o in members])
        if len(sessions) < config.surfaces.min_sessions or share.low <= 1 - config.monitor.target_success:
            continue
        if not wrong and not _suggested(evidence, right):
            continue
        if not everywhere([o.case for o in members], evidence.current):
            continue
        mine = {o.case.key for o in wanting}
        other = [o.case.request for o in outcomes if o.case.key not in mine]
        about, sources = told_apart([o.case for o in members], other, config.surfaces.min_sessions, evidence.current)
        if about:
            changes.append(_route(wrong, right, about, members, sources, f"{share} of what {right} is for"))
    return changes


def _route(
    wrong: str,
    right: str,
    about: Sequence[str],
    members: Sequence[Outcome],
    sources: tuple[Key, ...],
    share: str,
) -> _Change:
    cases = [o.case for o in members]
    said = ", ".join(about)
    instead = f", not {wrong}" if wrong else ""
    tools = [_overlay(right, cases, hint=f"Use this for requests about {said}{instead}.")]
    if wrong:
        tools.append(_overlay(wrong, cases, hint=f"Not for requests about {said}: use {right}."))
    return _Change(
        summary=f"{right} rather than {wrong or 'no call'} for requests about {said}",
        tools=tools,
        why=f"people showed {right} in {len(sessions_of(cases))} sessions that called {wrong or 'nothing'}: {share}",
        sessions=sources,
        evidence=tuple(sorted(c.event_id for c in cases)),
    )


def _mistaken(outcome: Outcome) -> tuple[str, str] | None:
    """(tool called, tool people showed) of a failure; the first is empty when nothing was called."""
    if not outcome.failed or not outcome.wanted:
        return None
    done, wanted = [c.name for c in outcome.done], [c.name for c in outcome.wanted]
    missing = [name for name in wanted if name not in done]
    extra = [name for name in done if name not in wanted]
    if not missing or (done and not extra):
        return None  # a call among several that is left out is a step, not a route
    return (extra[-1] if extra else ""), missing[-1]


def _suggested(evidence: Evidence, tool: str) -> bool:
    return any(c.surface == "tools" and tool in (c.tool, *c.kinds) for c in evidence.diagnosis.clusters)


def _overlay(name: str, cases: Sequence[Case], **given: Any) -> dict[str, Any]:
    provenance = sorted({case.demonstration_id or case.event_id for case in cases})[:16]
    return {"name": name, "provenance": provenance, **given}


def _merged(known: ToolOverlay | None, given: dict[str, Any]) -> ToolOverlay:
    """What is told about a tool already, and the new: a hint that is there is not told twice."""
    if known is None:
        return msgspec.convert(given, ToolOverlay)
    hint = given.get("hint", "")
    hints = known.hint if hint in known.hint else f"{known.hint} {hint}".strip()
    arguments = {name: {**known.arguments.get(name, {}), **patch} for name, patch in given.get("arguments", {}).items()}
    same = hints == known.hint and all(known.arguments.get(name) == patch for name, patch in arguments.items())
    if same:
        return known
    return ToolOverlay(
        name=known.name,
        description=known.description,
        hint=hints,
        arguments={**known.arguments, **arguments},
        provenance=tuple(dict.fromkeys((*known.provenance, *given["provenance"]))),
    )


def _diff(tool: dict[str, Any]) -> list[str]:
    lines = [f"+ {tool['name']}: {tool['hint']}"] if tool.get("hint") else []
    for argument, patch in tool.get("arguments", {}).items():
        lines += [f"+ {tool['name']}({argument}).{keyword} = {value!r}" for keyword, value in patch.items()]
    return lines
