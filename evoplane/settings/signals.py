"""What is taken for a signal, and what signals are worth."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from evoplane.settings.forms import HttpUrlOrEmpty, Variable, VariableOrEmpty
from evoplane.settings.section import Section


class Harvest(Section):
    enabled: bool = Field(True, description="look for candidate signals in what users and tools said")


class WebhookRule(Section):
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


class WebhookSource(Section):
    """A system that posts to `/v1/feedback/webhooks/<name>`."""

    scheme: Literal["github", "stripe", "zendesk", "hmac"] = Field("hmac", description="how it signs")
    header: str = Field("x-signature-256", description="the signature's header, for scheme hmac")
    secret_env: list[Variable] = Field(min_length=1, description="variables that hold its secret, and the former one")
    tenant: str = Field(description="whose trajectories it speaks of")
    agent: str = Field(description="and whose work")
    tolerance_s: float = Field(300, description="how old a timed signature may be")
    delivery: str | None = Field(None, description="pointer to the message's own id; else its body is its identity")
    rules: list[WebhookRule] = Field(description="what its messages mean")


SourceKind = Literal["environment", "code", "llm_judge", "reward_model", "human", "end_user", "implicit"]


class RewardClause(Section):
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


class RewardSettings(Section):
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


class Judge(Section):
    """A model that judges what agents did, by a written constitution."""

    url: HttpUrlOrEmpty = Field("", description="an OpenAI-compatible endpoint, with /v1; empty: nothing is judged")
    model: str = Field("", description="the model asked there")
    key_env: VariableOrEmpty = Field(
        "", description="environment variable that holds its API key; empty: it needs none"
    )
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


class NextState(Section):
    """What users' next messages say about the answers before them."""

    interval_s: int = Field(
        0, ge=0, description="the trained classifier reads new replies this often, in seconds; 0: only by hand"
    )
