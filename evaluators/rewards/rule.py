"""The rule that turns an agent's signals into reward: declared in `evoplane.toml`, versioned by its digest.

What a rule trusts of calibrated sources (`min_agreement`) depends on measurements, which
`evoplane rewards calibrate` keeps in `var/rewards/<agent>.json`. They are part of the rule in force and of its digest,
so that a reward names exactly what it was made by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from atdp import canonical
from evaluators.rewards.signals import Signal, SourceKey
from evoplane import files
from evoplane.settings import RewardClause, RewardSettings, Settings

ANY_AGENT = "default"
"""The section of `[rewards.…]` for agents that have none of their own."""


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """How often a source agreed with the reference on trajectories that both judged."""

    name: str
    kind: str
    id: str
    n: int
    agreement: float
    low: float
    """Lower bound of the agreement."""
    at: str

    @property
    def key(self) -> SourceKey:
        return SourceKey(self.name, self.kind, self.id)


@dataclass(frozen=True)
class RewardRule:
    """A declared rule with what was measured for it."""

    declared: RewardSettings
    calibration: tuple[Calibrated, ...] = ()
    _clauses: dict[SourceKey | tuple[str, str, str], RewardClause | None] = field(
        default_factory=dict, compare=False, repr=False
    )

    @cached_property
    def digest(self) -> str:
        """`sha256:` over the canonical form: the rule's version."""
        return canonical.digest(self.described())

    def described(self) -> dict[str, Any]:
        """The whole rule as plain data, for a decision's record."""
        return {
            **self.declared.model_dump(mode="json"),
            "calibration": [msgspec.to_builtins(each) for each in self.calibration],
        }

    def clause(self, signal: Signal) -> RewardClause | None:
        """The first clause that fits a signal; None when the rule doesn't speak of it."""
        key = (signal.name, signal.source, signal.source_id)
        if key not in self._clauses:
            self._clauses[key] = next((c for c in self.declared.clauses if _fits(c, *key)), None)
        return self._clauses[key]

    def calibrated(self, signal: Signal) -> Calibrated | None:
        """What was measured of a signal's source."""
        return self._measured.get(signal.key)

    @cached_property
    def _measured(self) -> dict[SourceKey, Calibrated]:
        return {each.key: each for each in self.calibration}


DEFAULT_RULE = RewardRule(RewardSettings(clauses=[RewardClause(name="resolved", about="trajectory")]))
"""What `resolved` says, the latest of them; every decision has its trajectory's reward."""


def declare(**declared: Any) -> RewardRule:
    """A rule from the keys of its section in `evoplane.toml`; raises pydantic's `ValidationError`."""
    return RewardRule(RewardSettings.model_validate(declared))


def rule_of(config: Settings, agent: str) -> RewardRule:
    """The rule in force for an agent: its own section, else `[rewards.default]`, else `DEFAULT_RULE`."""
    declared = config.rewards.get(agent) or config.rewards.get(ANY_AGENT) or DEFAULT_RULE.declared
    if not any(clause.min_agreement for clause in declared.clauses):
        return RewardRule(declared)
    file = calibration_file(config, agent)
    measured = msgspec.json.decode(file.read_bytes(), type=tuple[Calibrated, ...]) if file.exists() else ()
    return RewardRule(declared, measured)


def encode(rule: RewardRule) -> bytes:
    """The rule as JSON, to be kept with what was judged by it."""
    return msgspec.json.format(msgspec.json.encode(rule.described()), indent=1) + b"\n"


def decode(kept: bytes) -> RewardRule:
    """The rule that `encode` wrote; the digest is the same."""
    described = msgspec.json.decode(kept)
    measured = msgspec.convert(described.pop("calibration"), tuple[Calibrated, ...])
    return RewardRule(RewardSettings.model_validate(described), measured)


def keep_calibration(config: Settings, agent: str, measured: Iterable[Calibrated]) -> Path:
    """Write what was measured; from then on it is part of the agent's rule."""
    file = calibration_file(config, agent)
    files.write_durably(file, msgspec.json.encode(sorted(measured, key=lambda each: each.key)))
    return file


def calibration_file(config: Settings, agent: str) -> Path:
    return config.var / "rewards" / f"{agent}.json"


def _fits(clause: RewardClause, name: str, kind: str, source: str) -> bool:
    return (
        fnmatchcase(name, clause.name)
        and (not clause.kinds or kind in clause.kinds)
        and fnmatchcase(source, clause.source)
    )
