"""Verdicts as signals for `/v1/feedback`: the data proxy is the only writer of trajectories."""

from __future__ import annotations

from typing import Any

from atdp.ids import derived_id
from evaluators.judges.constitution import Constitution
from evaluators.judges.judging import PROMPT_VERSION
from evaluators.judges.verdicts import PairVerdict, Verdict

_DIGITS = 12
"""Of a digest in a source's version."""


def source(model: str, constitution: Constitution) -> dict[str, str]:
    """Who judged: the model, the constitution's digest and the wording."""
    digest = constitution.digest.removeprefix("sha256:")[:_DIGITS]
    return {"kind": "llm_judge", "id": model, "version": f"{constitution.name}/{digest}/{PROMPT_VERSION}"}


def ruling_signals(event_id: str, verdict: Verdict, model: str, constitution: Constitution) -> list[dict[str, Any]]:
    """The signal of a ruling; none of one that abstained."""
    if verdict.ruling == "abstain":
        return []
    votes = f"{sum(v.ruling == verdict.ruling for v in verdict.votes)} of {len(verdict.votes)} votes"
    violated = f" violates {', '.join(verdict.violated)}:" if verdict.violated else ""
    value, words = float(verdict.ruling == "pass"), f"{votes}:{violated} {verdict.reason}"
    return [_signal("judge", event_id, value, verdict.confidence, words, model, constitution)]


def preference_signals(
    first: str, second: str, verdict: PairVerdict, model: str, constitution: Constitution
) -> list[dict[str, Any]]:
    """The signal of a comparison of two answers, by event id; none of a tie.

    One comparison is one signal, whichever answer was named first and in whichever order the judge read them. It is
    about the newer answer (ids are ordered by time), 1 where that is better than the older and 0 where it is worse; a
    verdict that the swap of positions changed is no vote for either and lowers the confidence.
    """
    if verdict.preference not in ("first", "second"):
        return []
    older, newer = sorted((first, second))
    better = (first if verdict.preference == "first" else second) == newer
    votes = f"{sum(v.preference == verdict.preference for v in verdict.votes)} of {len(verdict.votes)} votes"
    words = f"{votes}: {'better' if better else 'worse'} than {older}: {verdict.reason}"
    name, confidence = "judge.preferred", verdict.confidence
    return [_signal(name, newer, float(better), confidence, words, model, constitution, older)]


def _signal(
    name: str, event_id: str, value: float, confidence: float, words: str, model: str, by: Constitution, *about: str
) -> dict[str, Any]:
    who = source(model, by)
    return {
        "name": name,
        "event_id": event_id,
        "value": value,
        "confidence": round(confidence, 4),
        "explanation": words,
        "source": who,
        "optimizable": False,
        # the same judge's verdict on the same answer is one signal, however often it is asked
        "id": derived_id("fb", name, event_id, who["id"], who["version"], *about),
    }
