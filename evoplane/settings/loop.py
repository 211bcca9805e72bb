"""The loop: watching an agent, improving it, proving and delivering what improves it, and telling people."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from evoplane.settings.forms import HttpUrl, HttpUrlOrEmpty, Variable, VariableOrEmpty
from evoplane.settings.section import Section


class Monitor(Section):
    interval_s: int = Field(600, ge=60, description="the scheduled monitor looks this often")
    window: int = Field(400, description="newest trajectories a tenant that are looked at, judged or not")
    min_outcomes: int = Field(40, description="fewer judged trajectories than this are 'not enough data'")
    target_success: float = Field(0.9, description="success rate below which an agent is worth improving")
    alpha: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="probability that an agent as good as ever is ever disturbed while a version serves; "
        "and the error of every shown interval",
    )
    drift_min_rows: int = Field(50, ge=20, description="new trajectories that drift looks at together")
    min_cohen_h: float = Field(0.2, gt=0, description="smallest change of a rate that is drift, Cohen's h")
    min_cramers_v: float = Field(0.15, gt=0, description="smallest change of a category that is drift, Cramér's V")
    min_ks_d: float = Field(0.15, gt=0, description="smallest change of a measurement that is drift, KS distance")
    min_auc: float = Field(0.6, gt=0.5, description="smallest change of texts that is drift, classifier's AUC")
    text_drift: Literal["embeddings", "lexical", "off"] = Field(
        "lexical", description="what requests are compared by; embeddings cost a look 10 s of start-up or more"
    )
    debounce_s: float = Field(60, description="one alert per agent and cause within this time")


class Evolve(Section):
    replay_cases: int = Field(96, description="recorded cases a candidate is replayed on, at most")
    heldout_share: float = Field(0.25, description="share of tasks kept out of training for replay")
    min_demonstrations: int = Field(32, description="fewer are refused as a training set")
    epochs: int = Field(3, description="times a policy update sees each example")
    batch_size: int = Field(8, description="examples an optimiser step learns from, packed into one sequence")
    learning_rate: float = Field(6e-4, description="peak learning rate of a policy update (AdamW on LoRA)")
    gentle_learning_rate: float = Field(
        1e-4, description="the same for what moves the policy by its own answers: DPO, GRPO, OPD"
    )
    lora_rank: int = Field(16, description="rank of the adapters trained here")
    memory_cost: float = Field(0.005, description="subtracted from a memory candidate's lower bound")
    policy_cost: float = Field(0.02, description="subtracted from a policy candidate's lower bound")
    max_regression: float = Field(0.1, description="tolerated loss on known successes, lower bound")
    probe_cases: int = Field(16, ge=0, description="earlier successes a candidate is asked again, at most")
    budget_per_day: int = Field(48, ge=1, description="evolutions of one agent that replay candidates, within 24 hours")
    trainings_per_day: int = Field(12, ge=0, description="trained candidates of one agent, within 24 hours")


class Surfaces(Section):
    """What each surface may propose, and what its proposals are charged."""

    min_sessions: int = Field(3, ge=2, description="independent sessions that must show the same before it is proposed")
    max_proposals: int = Field(3, ge=1, description="proposals of one surface in one evolution, at most")
    max_items: int = Field(8, ge=1, description="memory items, edits, tools or skills one proposal changes, at most")
    max_bytes: int = Field(4000, ge=1, description="text one proposal adds, at most")
    max_edits: int = Field(12, ge=1, description="prompt edits a version may have, at most")
    skill_cost: float = Field(0.005, ge=0, description="subtracted from a skill candidate's lower bound")
    harness_cost: float = Field(0.005, ge=0, description="subtracted from a prompt candidate's lower bound")
    tools_cost: float = Field(0.005, ge=0, description="subtracted from a tool candidate's lower bound")
    rollback_cost: float = Field(0.001, ge=0, description="subtracted from a rollback's lower bound")
    memory_risk: float = Field(0.0, ge=0, description="subtracted as well, for what replay does not see")
    skill_risk: float = Field(0.0, ge=0, description="the same for a skill")
    harness_risk: float = Field(0.005, ge=0, description="the same for a prompt edit")
    tools_risk: float = Field(0.0, ge=0, description="the same for a tool overlay")
    policy_risk: float = Field(0.0, ge=0, description="the same for a policy update")
    rollback_risk: float = Field(0.0, ge=0, description="the same for a rollback")
    algorithms: list[Literal["sft", "rft", "dpo", "grpo", "opd"]] = Field(
        ["sft", "rft", "dpo", "grpo", "opd"],
        description="policy updates that may be proposed when there is data for them",
    )
    max_trained: int = Field(1, ge=0, description="policy candidates trained in one evolution, at most, best first")
    gepa_url: HttpUrlOrEmpty = Field(
        "", description="OpenAI-compatible endpoint that writes prompts for GEPA; empty: off"
    )
    gepa_model: str = Field("", description="the model asked there")
    gepa_key_env: VariableOrEmpty = Field(
        "", description="environment variable that holds that endpoint's key, if it needs one"
    )
    gepa_calls: int = Field(200, ge=1, description="replayed decisions one run of GEPA may cost, at most")
    gepa_seconds: float = Field(600, gt=0, description="and seconds")


class Replay(Section):
    protected_tools: list[str] = Field([], description="tools a candidate must not call; each call is a violation")
    repeats: int = Field(1, ge=1, description="times a candidate answers each case, under seeds of their own")
    max_steps: int = Field(24, ge=1, description="answers a re-made conversation may take")
    teacher_url: HttpUrlOrEmpty = Field(
        "", description="a stronger model's OpenAI-compatible endpoint, for training data"
    )
    teacher_model: str = Field("", description="the stronger model's name there")
    teacher_key_env: VariableOrEmpty = Field("", description="environment variable that holds its API key")


class Delivery(Section):
    shadow_share: float = Field(0.5, description="share of live sessions mirrored to the shadow")
    shadow_sessions: int = Field(8, description="mirrored sessions the shadow stage needs")
    shadow_max_requests: int = Field(2_000, ge=1, description="requests a gateway may spend on a shadow stage")
    shadow_max_tokens: int = Field(2_000_000, ge=1, description="tokens a shadow stage may spend")
    canary_weights: list[float] = Field([0.25, 0.5], description="canary steps, share of sessions")
    canary_min_sessions: int = Field(24, description="judged canary sessions before it may pass")
    canary_step_sessions: int = Field(6, description="judged canary sessions before the next weight")
    harm_margin: float = Field(0.2, description="a canary this much worse than the champion must not pass")
    canary_tenants: list[str] = Field([], description="tenants canaries may touch; empty: all that have not opted out")
    canary_tenant_weights: dict[str, list[float]] = Field(
        {}, description="single tenants' steps, where they are not canary_weights"
    )
    breach_signals: list[str] = Field(
        ["safety_breach", "unsafe_action", "data_leak"],
        description="signals and guardrails of which a single bad one ends a canary, or a watched promotion, at once",
    )
    latency_tolerance: float = Field(1.5, ge=1, description="a canary may take this many times the champion's time")
    cost_tolerance: float = Field(1.5, ge=1, description="and use this many times its tokens")
    alpha: float = Field(
        0.05, description="error probability of the sequential test, over all metrics, tenants and looks together"
    )
    approvals_needed: int = Field(1, ge=1, description="distinct people who must approve a promotion; 2 is four eyes")
    stage_timeout_s: float = Field(900, description="a stage without enough traffic pauses after this long")
    approval_timeout_s: float = Field(7 * 24 * 3600, description="an unanswered approval is a rejection")
    watch_sessions: int = Field(12, description="judged sessions watched after a promotion")


AlertEvent = Literal[
    "evoplane.agent.degraded",
    "evoplane.agent.workload_shift",
    "evoplane.canary.aborted",
    "evoplane.canary.paused",
    "evoplane.approval.waiting",
    "evoplane.rollback.done",
]
"""What people are told of."""


class AlertHook(Section):
    """A system that is told of alerts by a signed POST."""

    url: HttpUrl = Field(description="where it listens")
    secret_env: Variable = Field(description="environment variable that holds the secret of its HMAC-SHA256 signature")
    events: list[AlertEvent] = Field(["evoplane.agent.degraded"], description="what it is told")


class Alerts(Section):
    attempts: int = Field(4, ge=1, description="tries of a webhook at each look, with doubling pauses")
    timeout_s: float = Field(10, gt=0, description="how long one try may take")
    keep_hours: float = Field(24, gt=0, description="an alert that was not taken by then is given up")
