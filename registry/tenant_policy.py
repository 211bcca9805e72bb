"""What a tenant has decided about its data: what is hidden, what is kept sealed, for how long, and how much it may use.

A policy is one row in the control database, written as TOML by `evoplane tenant policy set`. A tenant
without one has the default: redaction on, originals sealed, no end of retention, no limits.
"""

from __future__ import annotations

import re
import sqlite3
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import msgspec
import regex
from msgspec import Meta, Struct

from registry import audit
from registry.control import now, transaction
from registry.tenants import RegistryError, require_tenant

Action = Literal["pseudonym", "mask", "drop", "keep"]
"""`pseudonym`: a stable name, original sealed; `mask`: gone for good; `drop`: with its whole field; `keep`: as is."""

_MAX_PATTERN = 300
_SEARCH_S = 0.02
_NESTED_REPEAT = re.compile(r"\([^()]*[+*][^()]*\)[+*{]")
"""`(a+)+`: a pattern that takes exponential time would stop the gateway."""


_MAX_REPEATED = 100_000
"""Characters that a pattern's counted repetitions may stand for: they are written out when it is compiled, and
`((a{1000}){1000}){1000}` would take all memory."""
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d+)?,?(\d+)?\}|.", re.DOTALL)

_MAX_TERMS = 20_000
"""Those take seconds to compile, which a gateway has to."""

_MAX_RETENTION_DAYS = 36_500
_MAX_BUDGET = 2**53
"""What JSON carries whole."""


class BoundedPattern:
    """A tenant's pattern: no check of its text tells all that run away, so every search has a time limit."""

    def __init__(self, pattern: regex.Pattern[str]) -> None:
        self._pattern = pattern

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where it matches a text; raises `TimeoutError` when finding that takes too long."""
        for match in self._pattern.finditer(text, timeout=_SEARCH_S):
            yield match.start(), match.end()


class _Policy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of everything in a policy: unknown keys are errors."""


class Dictionary(_Policy, frozen=True):
    """Words of the tenant's own that are hidden wherever they stand: project names, people, internal hosts."""

    name: Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,30}$")]
    terms: tuple[str, ...] = ()
    """Found as whole words."""
    patterns: tuple[str, ...] = ()
    """Regular expressions (Python's)."""
    ignore_case: bool = True
    action: Action = "pseudonym"

    @property
    def entity(self) -> str:
        """What a finding of it is called."""
        return self.name.upper()

    def compiled(self) -> BoundedPattern:
        """One pattern for all of it; raises `RegistryError` for what is none or could run away."""
        texts = [rf"(?<!\w){re.escape(term)}(?!\w)" for term in sorted(self.terms, key=len, reverse=True)]
        for pattern in self.patterns:
            if len(pattern) > _MAX_PATTERN or _NESTED_REPEAT.search(pattern):
                raise RegistryError(f"dictionary {self.name}: {pattern!r} is too long or repeats a repetition")
            texts.append(f"(?:{pattern})")
        try:
            compiled = regex.compile("|".join(texts), regex.IGNORECASE if self.ignore_case else 0)
            empty = not texts or compiled.search("", timeout=_SEARCH_S) is not None
        except Exception as error:  # beside its own, that there is no memory for it, or that it calls itself for ever
            why = str(error) or type(error).__name__
            raise RegistryError(f"dictionary {self.name}: it can't be compiled: {why}") from error
        if empty:
            raise RegistryError(f"dictionary {self.name} is empty, or a pattern of it matches nothing at all")
        return BoundedPattern(compiled)


class FieldRule(_Policy, frozen=True):
    """A field that is hidden whatever it holds."""

    field: Annotated[str, Meta(min_length=1, max_length=200)]
    """A key (`ssn`), or the end of a path (`arguments.customer.name`); `*` is any one key or position."""
    action: Action = "pseudonym"
    entity: Annotated[str, Meta(pattern="^[A-Z][A-Z0-9_]{0,30}$")] = "FIELD"


class Budget(_Policy, frozen=True):
    """How much a tenant, or one of its keys, may use; None is without limit."""

    requests_per_minute: Annotated[int, Meta(gt=0)] | None = None
    tokens_per_day: Annotated[int, Meta(gt=0)] | None = None
    cost_usd_per_day: Annotated[float, Meta(gt=0)] | None = None


class TenantPolicy(_Policy, frozen=True):
    """Everything a tenant has decided."""

    redaction: Literal["standard", "strict", "secrets", "off"] = "standard"
    """standard: secrets, contacts, numbers; strict: also names and addresses in fields, reasoning sealed;
    secrets: credentials only; off: nothing."""
    actions: dict[str, Action] = {}
    """By entity (`EMAIL_ADDRESS`, `API_KEY`, …); else secrets are masked and the rest gets a pseudonym."""
    dictionaries: tuple[Dictionary, ...] = ()
    fields: tuple[FieldRule, ...] = ()
    countries: tuple[str, ...] | None = None
    """Countries whose national numbers are looked for (`us`, `uk`, `de`, …); None is all known."""
    seal: bool = True
    """Keep originals sealed, for whoever gets a grant?"""
    reasoning: Literal["keep", "seal", "drop"] | None = None
    """The model's reasoning; None is the level's own: `seal` when strict, else `keep`."""
    on_failure: Literal["drop", "block"] = "drop"
    """When redaction fails: store the event without payload, or answer 503."""
    retention_days: Annotated[int, Meta(gt=0)] | None = None
    legal_hold: bool = False
    basis: Literal["consent", "contract", "legitimate_interest", "legal_obligation", "synthetic", "none"] | None = None
    basis_ref: str | None = None
    budget: Budget = Budget()
    key_budgets: dict[str, Budget] = {}
    """By key id, below the tenant's own."""
    exposure: Literal["canary", "shadow", "none"] = "canary"
    """What may be tried on its sessions: canaries and shadows, shadows only (no user effect), or nothing."""
    pooling: bool = False
    """May its data be pooled with other tenants' (asked beside the Cedar policy)?"""
    federated: bool = False
    """May an adapter trained on its data alone be averaged with other tenants'?"""

    @property
    def name(self) -> str:
        """How a record names the policy it was redacted under."""
        return self.redaction if self == TenantPolicy(redaction=self.redaction) else f"{self.redaction}+tenant"

    def expires(self, opened: datetime) -> datetime | None:
        """The end of retention of what was opened then; None is never."""
        if self.retention_days is None:
            return None
        try:
            return opened + timedelta(days=self.retention_days)
        except OverflowError:  # more than can be set now
            return datetime.max.replace(tzinfo=UTC)

    @property
    def journals(self) -> bool:
        """May what was captured lie on the disk for a moment before it is redacted, encrypted?

        Not where nothing may be kept even sealed, or an exchange that can't be redacted must not be answered.
        """
        return (
            self.seal and self.redaction != "strict" and self.on_failure != "block" and self.hides_reasoning != "drop"
        )

    @property
    def hides_reasoning(self) -> Literal["keep", "seal", "drop"]:
        return self.reasoning or ("seal" if self.redaction == "strict" else "keep")


DEFAULT = TenantPolicy()


def parse(text: str) -> TenantPolicy:
    """A policy from TOML; raises `RegistryError` that says what is wrong with it."""
    try:
        policy = msgspec.convert(tomllib.loads(text), TenantPolicy)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise RegistryError(f"this is no tenant policy: {error}") from error
    except RecursionError as error:
        raise RegistryError("this is no tenant policy: it is nested too deeply") from error
    except ValueError as error:  # Python converts no longer ones
        raise RegistryError("this is no tenant policy: it has a number of too many digits") from error
    _require_sensible(policy)
    for dictionary in policy.dictionaries:
        dictionary.compiled()
    return policy


def _require_sensible(policy: TenantPolicy) -> None:
    """Not part of the type: a policy that was set before there were these bounds is read on."""
    if (policy.retention_days or 0) > _MAX_RETENTION_DAYS:
        raise RegistryError(
            f"retention_days: {_MAX_RETENTION_DAYS} is the longest; leave it out to keep things for ever"
        )
    if sum(len(dictionary.terms) for dictionary in policy.dictionaries) > _MAX_TERMS:
        raise RegistryError(f"dictionaries: {_MAX_TERMS} terms are the most, of all together")
    for dictionary in policy.dictionaries:
        for pattern in dictionary.patterns:
            if _repeated(pattern) > _MAX_REPEATED:
                raise RegistryError(
                    f"dictionary {dictionary.name}: {pattern!r} repeats too much, a repetition of repetitions"
                )
    for budget in (policy.budget, *policy.key_budgets.values()):
        for name in budget.__struct_fields__:
            if (getattr(budget, name) or 0) > _MAX_BUDGET:
                raise RegistryError(f"{name}: {_MAX_BUDGET} is the largest; leave it out for no limit")


def _repeated(pattern: str) -> int:
    """About how many characters a pattern stands for with its counted repetitions written out."""
    sizes, last = [0], 0
    for token in _TOKEN.finditer(pattern):
        if token[0] == "(":
            sizes.append(0)
            continue
        if token[0] == ")" and len(sizes) > 1:
            last = sizes.pop()
        elif token[1] or token[2]:
            times = max(int(token[1] or 0), int(token[2] or 0), 1)
            sizes[-1] += last * (times - 1)
            last *= times
            continue
        else:
            last = 1
        sizes[-1] += last
    return sum(sizes)


def put(connection: sqlite3.Connection, tenant: str, policy: TenantPolicy, actor: str) -> TenantPolicy:
    """Set a tenant's policy and give the one before it; gateways follow within a second. What was stored stays."""
    body = msgspec.json.encode(policy)
    with transaction(connection):
        require_tenant(connection, tenant)
        before = get(connection, tenant)
        connection.execute(
            "INSERT INTO tenant_policies VALUES (?,?,?)"
            " ON CONFLICT (tenant) DO UPDATE SET body=excluded.body, changed_at=excluded.changed_at",
            (tenant, body, now()),
        )
        audit.append(connection, actor, "tenant.policy", tenant, msgspec.json.decode(body))
    return before


def changes(before: TenantPolicy, after: TenantPolicy) -> list[str]:
    """The fields in which two policies differ."""
    return [name for name in TenantPolicy.__struct_fields__ if getattr(before, name) != getattr(after, name)]


def get(connection: sqlite3.Connection, tenant: str) -> TenantPolicy:
    row = connection.execute("SELECT body FROM tenant_policies WHERE tenant=?", (tenant,)).fetchone()
    return msgspec.json.decode(row["body"], type=TenantPolicy) if row else DEFAULT


def all_policies(connection: sqlite3.Connection) -> dict[str, TenantPolicy]:
    """The policies that were set, by tenant."""
    rows = connection.execute("SELECT tenant, body FROM tenant_policies")
    return {row["tenant"]: msgspec.json.decode(row["body"], type=TenantPolicy) for row in rows}
