"""A whole record without what is personal or secret: same structure, same types, same ids.

Everything a client, a model or a tool may have put into a record is searched: messages, arguments as objects
and as text, results, errors, tags, headers, extensions, and the names of fields. Our own identities and the
chain are left alone. Nothing is raised for what a record may hold: a value that can't be searched is replaced
by `{redacted, labels: ["redaction_failed"]}`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from registry.tenant_policy import FieldRule, TenantPolicy
from services.proxy.redaction.detect import Detector
from services.proxy.redaction.failure import described
from services.proxy.redaction.fields import FieldRules
from services.proxy.redaction.findings import SECRETS
from services.proxy.redaction.pseudonyms import Pseudonyms
from services.proxy.redaction.skim import Skim, texts_of
from services.proxy.redaction.walk import Walk

_log = logging.getLogger(__name__)

FAILED = "redaction_failed"

_OURS = frozenset(
    {"atdp", "record", "id", "trajectory_id", "kind", "time", "ctx", "span_id", "parent_id", "parent", "causes", "seq",
     "prev_hash", "hash", "gov", "replay", "tokens", "turn", "step", "duration_ms", "targets", "chosen", "rejected",
     "supersedes", "evidence", "observed_at", "scale", "confidence", "patch", "optimizable", "retracted", "value",
     "agent"}
)  # fmt: skip
"""Of a record's own fields those that hold nothing from outside."""

BUDGET_S = 1.0
"""Longest search of one exchange: others' records wait for it. A megabyte of text takes a tenth of that."""

_MIN_KNOWN = 6
"""What is shorter, or all letters, may be a word: hidden where it was recognised, not wherever it stands."""
_MOST_KNOWN = 256


@dataclass
class Redacted:
    """What became of one record."""

    record: Mapping[str, Any]
    entities: dict[str, int] = field(default_factory=dict)
    """How many of what were found."""
    substitutions: dict[str, Any] = field(default_factory=dict)
    """Pseudonym → original, for those that may be kept sealed."""
    values: dict[str, str] = field(default_factory=dict)
    """What was recognised, and as what."""
    masked: bool = False
    """Is something gone for good?"""
    failed: bool = False
    """Was something removed because it could not be searched?"""

    @property
    def changed(self) -> bool:
        return bool(self.entities) or self.failed


class Redactor:
    """One tenant's policy, ready to use. Not for several threads at once."""

    def __init__(self, policy: TenantPolicy, pseudonyms: Pseudonyms) -> None:
        self.policy = policy
        self.pseudonyms = pseudonyms
        self.fields = FieldRules(policy)
        self.actions = {d.entity: d.action for d in policy.dictionaries} | policy.actions
        self.detector = Detector(
            policy.dictionaries,
            None if policy.countries is None else frozenset(policy.countries),
            frozenset(entity for entity, action in self.actions.items() if action == "keep"),
            personal=policy.redaction != "secrets",
        )
        self._skim = Skim(self)

    def action(self, entity: str) -> str:
        """What is done with a finding in a text."""
        return self.actions.get(entity) or ("mask" if entity in SECRETS else "pseudonym")

    def rule(self, name: str, path: tuple[str, ...]) -> FieldRule | None:
        return self.fields.find(name, path)

    def redact(self, record: Mapping[str, Any], known: dict[str, str] | None = None) -> Redacted:
        """One record; see `redact_all`."""
        return self.redact_all([record], known)[0]

    def redact_all(self, records: Sequence[Mapping[str, Any]], known: dict[str, str] | None = None) -> list[Redacted]:
        """Records that belong together: what is recognised in one of them is hidden in all.

        `known` maps values recognised earlier to their entity; what is recognised now is added to it.
        """
        self.detector.deadline = time.monotonic() + BUDGET_S
        values = {} if known is None else known
        try:
            done = [self._searched(record) for record in records]
        finally:
            self._skim.forget()
        for redacted in done:
            for value, entity in redacted.values.items():
                if len(value) >= _MIN_KNOWN and not value.isalpha() and len(values) < _MOST_KNOWN:
                    values.setdefault(value, entity)
        told = [redacted for redacted in done if _tells(redacted.record, values)] if values else []
        if told:
            pattern = re.compile("|".join(re.escape(v) for v in sorted(values, key=len, reverse=True)))
            for redacted in told:
                self._walked(Walk(self, (pattern, values)), redacted, redacted.record.keys() - _OURS)
        return done

    def text(self, text: str) -> str:
        """A name from outside, such as a session's id, as it may be stored."""
        value = Walk(self).value(text, "", ())
        return value if isinstance(value, str) else f"<{FAILED.upper()}>"

    def _searched(self, record: Mapping[str, Any]) -> Redacted:
        """The record without what is found in it; the very record where all of it is clean."""
        redacted = Redacted(record)
        clean = self._skim.clean
        unclean = {key for key, value in record.items() if key not in _OURS and not clean(value, key)}
        if unclean:
            self._walked(Walk(self), redacted, unclean)
        return redacted

    def _walked(self, walk: Walk, redacted: Redacted, members: Set[str]) -> None:
        """Walk these members of the record, and say what came of it."""
        try:
            redacted.record = {
                key: walk.value(value, key, (key,)) if key in members else value
                for key, value in redacted.record.items()
            }
        except Exception as error:
            # such as a RecursionError that the depth bound did not see coming: better empty than open
            _log.error("a record is stored without what came from outside: %s", described(error))
            walk.failed = True
            redacted.record = {key: value for key, value in redacted.record.items() if key in _OURS and key != "tokens"}
        for entity, count in walk.entities.items():
            redacted.entities[entity] = redacted.entities.get(entity, 0) + count
        redacted.substitutions |= walk.substitutions
        redacted.values |= walk.values
        redacted.masked |= walk.masked
        redacted.failed |= walk.failed


def _tells(record: Mapping[str, Any], values: Iterable[str]) -> bool:
    """Might one of the values stand somewhere in the record?"""
    texts: list[str] = []
    for key, value in record.items():
        if key not in _OURS:
            texts_of(value, texts)
    return any(map("\0".join(texts).__contains__, values))
