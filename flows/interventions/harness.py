"""Harness: bounded edits of what the agent is told before the conversation.

Extractive: an instruction that refusals quote, though people wanted it done, gets an exception or goes; an instruction
that people keep giving in their corrections comes in. Protected guardrails are never touched, nor contradicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from evaluators.cases import Case, Key
from evaluators.diagnosis.outcomes import Outcome, outcomes_of, read_only
from evaluators.diagnosis.surfaces import forbidding
from evaluators.diagnosis.symptoms import refuses
from evaluators.skills.when import words
from evoplane.settings import Settings
from flows.interventions import gepa_prompts
from flows.interventions.base import Evidence, Proposal, Surface
from flows.interventions.imperatives import Imperative, imperatives
from flows.interventions.sources import made_from, sessions_of, told_apart
from registry.manifest import Guardrail, Harness, Manifest, PromptEdit

_QUOTED = 0.3
"""Share of an instruction's words that a refusal must have to quote it."""
_ALIKE = 0.5
"""Share of words with a protected guardrail from which on an edit might be about the same."""


class HarnessEdit(Surface):
    surface = "harness"

    def cost(self, config: Settings) -> float:
        return config.surfaces.harness_cost

    def risk(self, config: Settings) -> float:
        return config.surfaces.harness_risk

    def propose(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        """For an over-strict instruction: an exception to it, and doing without it. For what people keep saying: that.
        And what GEPA writes, where an endpoint is configured for it."""
        if len(evidence.manifest.harness.edits) >= config.surfaces.max_edits:
            return []
        made = [*self._relaxed(evidence, config), *self._added(evidence, config)]
        made += gepa_prompts.propose(evidence, config, self.cost(config), self.risk(config))
        bounded = [p for p in made if len(msgspec.json.encode(p.content)) <= config.surfaces.max_bytes]
        return bounded[: config.surfaces.max_proposals]

    def apply(self, manifest: Manifest, proposal: Proposal, made: dict[str, Any]) -> Manifest:
        """Raises `ValueError` for a proposal that rewords a protected guardrail."""
        content = proposal.content
        guardrails = _reworded(manifest.guardrails, content.get("reword", {}))
        old = [edit for edit in manifest.harness.edits if edit.id not in content.get("drop", [])]
        new = [
            PromptEdit(
                id=f"edit_{proposal.fingerprint[7:15]}_{n}",
                op=edit["op"],
                old=edit.get("old", ""),
                text=edit.get("text", ""),
                provenance=tuple(proposal.evidence[:16]),
            )
            for n, edit in enumerate(content.get("edits", []))
        ]
        harness = Harness(
            system_append=content.get("system_append", manifest.harness.system_append),
            edits=(*old, *new),
            params=manifest.harness.params,
        )
        return msgspec.structs.replace(manifest, harness=harness, guardrails=guardrails)

    def _relaxed(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        outcomes = outcomes_of(evidence.current, read_only(evidence.current))
        refused = [o for o in outcomes if o.failed and refuses(o.case)]
        if len(sessions_of([o.case for o in refused])) < config.surfaces.min_sessions:
            return []
        quoted = Counter(s for o in refused for s in forbidding(o) if _quotes(o.case, s))
        for sentence, n in quoted.most_common():
            members = [o for o in refused if sentence in forbidding(o)]
            rightly = [o for o in outcomes if not o.failed and refuses(o.case) and _quotes(o.case, sentence)]
            if n < config.surfaces.min_sessions or _protected(sentence, evidence.manifest):
                continue
            return self._two_ways(sentence.lstrip("- "), members, rightly, outcomes, evidence.manifest, config)
        return []

    def _two_ways(
        self,
        sentence: str,
        members: Sequence[Outcome],
        rightly: Sequence[Outcome],
        outcomes: Sequence[Outcome],
        manifest: Manifest,
        config: Settings,
    ) -> list[Proposal]:
        tools = Counter(o.wanted[-1].name for o in members if o.wanted)
        alike = {o.case.key for o in [*members, *outcomes] if o in members or o.tool in tools}
        other = [o.case.request for o in outcomes if o.case.key not in alike]
        other += [o.case.request for o in rightly]
        about, sources = told_apart(
            [o.case for o in members], other, config.surfaces.min_sessions, [o.case for o in outcomes]
        )
        made = []
        if about:
            then = f"call {tools.most_common(1)[0][0]}" if tools else "do what is asked"
            exception = f"{sentence} Exception: for requests about {', '.join(about)}, {then}."
            made.append(self._reworded(sentence, exception, members, sources, manifest, config, self.risk(config)))
        if not rightly:
            made.append(self._reworded(sentence, "", members, sources, manifest, config, 2 * self.risk(config)))
        return [p for p in made if p is not None]

    def _reworded(
        self,
        sentence: str,
        text: str,
        members: Sequence[Outcome],
        sources: tuple[Key, ...],
        manifest: Manifest,
        config: Settings,
        penalty: float,
    ) -> Proposal | None:
        content = _edit_of(sentence, text, manifest)
        if content is None:
            return None
        sessions = sessions_of([o.case for o in members])
        return Proposal(
            surface=self.surface,
            summary=("exception to" if text else "without") + f" “{sentence[:80]}”",
            diff=f"- {sentence}"
            + (f"\n+ {text}" if text else "")
            + f"\n  quoted by refusals in {len(sessions)} sessions",
            content=content,
            cost=self.cost(config),
            risk="the instruction may have had a reason nobody wrote down; every tenant's requests are read without it",
            risk_penalty=penalty,
            source_sessions=sources,
            evidence=tuple(sorted(o.case.event_id for o in members)),
        )

    def _added(self, evidence: Evidence, config: Settings) -> list[Proposal]:
        found = [
            said
            for said in imperatives(evidence.current, config.surfaces.min_sessions)
            if not _known(said, evidence) and not _protected(said.text, evidence.manifest)
        ]
        return [self._said(said, config) for said in found[: config.surfaces.max_items]]

    def _said(self, said: Imperative, config: Settings) -> Proposal:
        sessions = sessions_of(said.cases)
        return Proposal(
            surface=self.surface,
            summary=f"people keep saying “{said.text[:80]}”",
            diff=f"+ {said.text}\n  {len(sessions)} sessions say so, {said.against} against",
            content={"edits": [{"op": "add", "text": said.text}]},
            cost=self.cost(config),
            risk="told to every tenant's agent; what some people want is not what all want",
            risk_penalty=self.risk(config),
            source_sessions=made_from(sessions, config.surfaces.min_sessions),
            evidence=said.provenance,
        )


def _edit_of(sentence: str, text: str, manifest: Manifest) -> dict[str, Any] | None:
    """Where the instruction stands: in a guardrail or an edit of ours, or in the agent's own prompt. None where it is
    the operator's to change."""
    for rule in manifest.guardrails:
        if sentence in rule.text:
            kept = rule.text.replace(sentence, text, 1).strip()
            return {"reword": {rule.id: kept}} if kept else None  # whether a rule exists is the operator's
    for edit in manifest.harness.edits:
        if edit.op == "add" and sentence in edit.text:
            rest = edit.text.replace(sentence, text, 1).strip()
            return {"drop": [edit.id], "edits": [{"op": "add", "text": rest}] if rest else []}
    if sentence in manifest.harness.system_append:
        return {"system_append": manifest.harness.system_append.replace(sentence, text, 1)}
    op = "replace" if text else "delete"
    return {"edits": [{"op": op, "old": sentence, "text": text}]}


def _reworded(guardrails: Sequence[Guardrail], texts: dict[str, str]) -> tuple[Guardrail, ...]:
    touched = [rule.id for rule in guardrails if rule.id in texts and rule.protected]
    if touched:
        raise ValueError(f"protected guardrails are not reworded: {', '.join(touched)}")
    return tuple(
        msgspec.structs.replace(rule, text=texts[rule.id]) if rule.id in texts else rule for rule in guardrails
    )


def _quotes(case: Case, sentence: str) -> bool:
    """Does the refusal have words of the instruction?"""
    said = next((s.text for s in reversed(case.steps) if s.kind == "llm_call" and s.text), case.action.text)
    rule = words(sentence)
    return bool(rule) and len(rule & words(said)) >= _QUOTED * len(rule)


def _protected(text: str, manifest: Manifest) -> bool:
    """Might it be what a protected guardrail says?"""
    mine = words(text)
    for rule in manifest.guardrails:
        kept = words(rule.text)
        if rule.protected and (text in rule.text or len(mine & kept) >= _ALIKE * max(1, min(len(mine), len(kept)))):
            return True
    return False


def _known(said: Imperative, evidence: Evidence) -> bool:
    """Was it in front of the model already? Then saying it again will not help."""
    mine = words(said.text)
    return any(
        mine <= words(sentence) for case in said.cases for sentence in _instructions(case).split("\n") if sentence
    )


def _instructions(case: Case) -> str:
    told = [m.get("content") for m in case.messages if m.get("role") in ("system", "developer")]
    return "\n".join([*(text for text in told if isinstance(text, str)), case.overlay_text])
