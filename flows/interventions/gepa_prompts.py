"""Prompts written by a model: GEPA (Agrawal et al. 2025, arXiv:2507.19457) over replay, through the `gepa` library.

Off unless an endpoint is configured (`surfaces.gepa_url`: any OpenAI-compatible one, the local vLLM too). What is
evolved is the text behind the agent's own prompt. Candidates are scored by replay on training tasks only; the decision
is made on the held-out ones, as for every candidate. A run costs `gepa_calls` replayed decisions and `gepa_seconds`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from evaluators.cases import Action, Case, Key
from evaluators.replay import judge
from evoplane.settings import Settings
from flows.answering import answer_cases
from flows.interventions.base import Evidence, Proposal
from registry.manifest import Manifest

COMPONENT = "instructions"
_SCORE = {"success": 1.0, "failure": 0.0, "unknown": 0.5}
_CASES = 48
_FEWEST = 6
_MINIBATCH = 3

Answer = Callable[[Manifest, Sequence[Case]], Mapping[Key, Action | None]]
"""A candidate's actions by case."""


class ReplayAdapter:
    """How GEPA runs a candidate: recorded decisions are made again under it and judged by the tape."""

    propose_new_texts = None

    def __init__(self, manifest: Manifest, answer: Answer, max_bytes: int) -> None:
        self._manifest = manifest
        self._answer = answer
        self._max_bytes = max_bytes

    def evaluate(self, batch: list[Case], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        from gepa.core.adapter import EvaluationBatch

        text = candidate[COMPONENT]
        if len(text.encode()) > self._max_bytes:
            answers: Mapping[Key, Action | None] = {}  # too long to be delivered: it is worth nothing
        else:
            answers = self._answer(with_text(self._manifest, text), batch)
        outputs = [answers.get(case.key) for case in batch]
        scores = [_SCORE[judge(case, action)] for case, action in zip(batch, outputs, strict=True)]
        traces = list(zip(batch, outputs, scores, strict=True)) if capture_traces else None
        return EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        rows = [
            {"Inputs": case.request, "Generated Outputs": _said(action), "Feedback": _feedback(case, score)}
            for case, action, score in eval_batch.trajectories or []
        ]
        return dict.fromkeys(components_to_update, rows)


def propose(
    evidence: Evidence,
    config: Settings,
    cost: float,
    risk: float,
    *,
    answer: Answer | None = None,
    write: Callable[[str], str] | None = None,
) -> list[Proposal]:
    """The text that GEPA ends with, if it scored better than the champion's on the training tasks."""
    limits = config.surfaces
    judged = [c for c in evidence.current if c.success is not None and c.trainable]  # a model reads them
    training = [c for c in judged if not evidence.split.is_held_out(c)]
    failed = [c for c in training if not c.success and (c.wanted is not None or c.corrections)]
    if not limits.gepa_url or len(failed) < _FEWEST:
        return []
    kept = failed[-_CASES // 2 :] + [c for c in training if c.success][-_CASES // 2 :]
    seed = evidence.manifest.harness.system_append
    found = _optimised(
        kept,
        seed,
        ReplayAdapter(evidence.manifest, answer or (lambda m, cases: answer_cases(config, m, cases)), limits.max_bytes),
        write or _endpoint(config),
        config,
    )
    if found is None or found[0].strip() == seed.strip() or len(found[0].encode()) > limits.max_bytes:
        return []
    text, before, after = found
    return [
        Proposal(
            surface="harness",
            summary=f"instructions written by {limits.gepa_model} (GEPA)",
            diff="\n".join([*(f"- {line}" for line in seed.splitlines()), *(f"+ {line}" for line in text.splitlines())])
            + f"\n  on {len(kept)} training decisions {before:.2f} → {after:.2f}",
            content={"system_append": text if text.startswith("\n") else "\n" + text},
            cost=cost,
            risk="written by a model: read it; told to every tenant's agent",
            risk_penalty=2 * risk,
            uses_heldout_tasks=True,
            evidence=tuple(sorted(c.event_id for c in kept)),
        )
    ]


def with_text(manifest: Manifest, text: str) -> Manifest:
    """The manifest with this text behind the agent's own prompt."""
    append = text if text.startswith("\n") or not text else "\n" + text
    return msgspec.structs.replace(manifest, harness=msgspec.structs.replace(manifest.harness, system_append=append))


def _optimised(
    cases: list[Case], seed: str, adapter: ReplayAdapter, write: Callable[[str], str], config: Settings
) -> tuple[str, float, float] | None:
    """(best text, score of the seed, score of the best); None when nothing is better."""
    import gepa
    from gepa.utils import TimeoutStopCondition

    optimize: Any = gepa.optimize
    result = optimize(
        seed_candidate={COMPONENT: seed or "Follow the user's request."},
        trainset=cases,
        valset=cases,
        adapter=adapter,
        reflection_lm=write,
        reflection_minibatch_size=_MINIBATCH,
        max_metric_calls=config.surfaces.gepa_calls,
        stop_callbacks=[TimeoutStopCondition(config.surfaces.gepa_seconds)],
        logger=_Quiet(),
        raise_on_exception=False,
        seed=0,
    )
    scores = result.val_aggregate_scores
    best = result.best_idx
    if scores[best] <= scores[0]:
        return None
    return result.candidates[best][COMPONENT], scores[0], scores[best]


class _Quiet:
    def log(self, message: str) -> None:
        """The run's numbers are in the proposal."""


def _endpoint(config: Settings) -> Callable[[str], str]:
    from openai import OpenAI

    key = os.environ.get(config.surfaces.gepa_key_env, "") if config.surfaces.gepa_key_env else ""
    client = OpenAI(base_url=config.surfaces.gepa_url, api_key=key or "none", timeout=120, max_retries=1)

    def write(prompt: Any) -> str:
        said: Any = prompt if isinstance(prompt, list) else [{"role": "user", "content": str(prompt)}]
        reply = client.chat.completions.create(model=config.surfaces.gepa_model, messages=said)
        return reply.choices[0].message.content or ""

    return write


def _said(action: Action | None) -> str:
    if action is None:
        return "(no answer)"
    return "; ".join(f"{c.name}({c.arguments})" for c in action.calls) or action.text


def _feedback(case: Case, score: float) -> str:
    if score == 1.0:
        return "Right."
    if case.wanted is not None:
        return f"Wrong. Right would have been: {_said(case.wanted)}"
    return "Wrong. " + " ".join(remark.text for remark in case.corrections)
