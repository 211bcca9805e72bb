"""The end of keeping: data keys of trajectories past their time are deleted, consent withdrawn is written down.

Records stay, with their hashes and their chain; what was sealed in them can't be opened any more. A tombstone
(an annotation of kind governance) says when and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from msgspec import UNSET

from atdp import clock
from atdp.ids import derived_id
from atdp.records import AnnotationDraft, Eligibility, Gov, Redaction, Retention, Source, Target
from registry.tenant_policy import TenantPolicy

_SHORTEST = timedelta(days=1)
"""No policy keeps for less."""
TOMBSTONE = "erased"
WITHDRAWN = "consent_withdrawn"


class Store(Protocol):
    """What of the event store is needed here."""

    async def append(self, tenant: str, drafts: Iterable[Any]) -> Any: ...
    async def erase_key(self, tenant: str, trajectory_id: str) -> None: ...


class Reader(Protocol):
    def trajectories(self, tenant: str) -> Iterable[Any]: ...
    def records(self, tenant: str, trajectory_id: str) -> list[dict[str, Any]]: ...


class Retired(NamedTuple):
    """What one pass did."""

    erased: list[str]
    held: list[str]
    """Past their time, and kept for a legal hold."""
    open: list[str]
    """Past their time, and not closed yet: more may be said in them, so they wait for their end."""


async def retain(
    store: Store, reader: Reader, tenant: str, policy: TenantPolicy, at: datetime | None = None, dry_run: bool = False
) -> Retired:
    """Erase what of a tenant is past its retention at `at` (now); closed trajectories only, each once.

    A trajectory's own `expires_at` counts, and the policy's days from its beginning if they end sooner. A hold
    in the header, in a later patch or in the policy keeps it.
    """
    moment = at or datetime.now(UTC)
    erased: list[str] = []
    held: list[str] = []
    still_open: list[str] = []
    # other work goes on meanwhile: the chains of a tenant may be many
    for row in await asyncio.to_thread(lambda: list(reader.trajectories(tenant))):
        if clock.parse(row.opened_at) + _SHORTEST > moment:
            continue
        chain = await asyncio.to_thread(reader.records, tenant, row.trajectory_id)
        gov = _in_force(chain)
        if gov.erased or not _expired(gov, chain[0]["time"], policy, moment):
            continue
        if gov.hold or policy.legal_hold:
            held.append(row.trajectory_id)
            continue
        if row.closed is None:
            still_open.append(row.trajectory_id)
            continue
        if not dry_run:
            await _erase(store, tenant, row.trajectory_id, chain, moment)
        erased.append(row.trajectory_id)
    return Retired(erased, held, still_open)


async def withdraw(store: Store, tenant: str, trajectory_ids: Iterable[str], by: str, reason: str = "") -> list[str]:
    """Write down that consent for training on these trajectories was withdrawn; deny wins over every allow."""
    done = []
    for id in trajectory_ids:
        patch = Gov(eligibility=Eligibility(train="deny", cross_tenant="deny"))
        await store.append(tenant, [governance(id, WITHDRAWN, patch, by, reason, key=WITHDRAWN)])
        done.append(id)
    return done


def governance(
    trajectory_id: str, name: str, patch: Gov, by: str, reason: str = "", key: str | None = None
) -> AnnotationDraft:
    """A change of a trajectory's governance; the same `key` again is the same change."""
    at = clock.now()
    return AnnotationDraft(
        atdp="1.0",
        id=derived_id("an", trajectory_id, key or f"{name}/{at}"),
        trajectory_id=trajectory_id,
        kind="governance",
        name=name,
        targets=[Target(trajectory_id=trajectory_id)],
        source=Source(kind="human" if by != "retention" else "code", id=by),
        time=at,
        patch=patch,
        explanation=reason or UNSET,
    )


class _Governance(NamedTuple):
    expires_at: str | None
    hold: bool
    erased: bool


def _in_force(chain: list[dict[str, Any]]) -> _Governance:
    """Header and patches folded in the order they were written."""
    expires_at: str | None = None
    hold = erased = False
    for record in chain:
        if record["record"] not in ("trajectory", "annotation"):
            continue
        retention = (record.get("gov") or record.get("patch") or {}).get("retention", {})
        expires_at = retention.get("expires_at", expires_at)
        hold = retention.get("legal_hold", hold)
        erased = erased or record.get("name") == TOMBSTONE
    return _Governance(expires_at, hold, erased)


def _expired(gov: _Governance, opened_at: str, policy: TenantPolicy, moment: datetime) -> bool:
    said = None if gov.expires_at is None else clock.parse(gov.expires_at)
    ends = [end for end in (said, policy.expires(clock.parse(opened_at))) if end is not None]
    return bool(ends) and min(ends) <= moment


async def _erase(store: Store, tenant: str, trajectory_id: str, chain: list[dict[str, Any]], moment: datetime) -> None:
    """The key goes first: after a crash in between the next pass finds no tombstone and does it again."""
    own = [r["ext"]["sealed"]["key"] for r in chain if "key" in r.get("ext", {}).get("sealed", {})]
    for owner in (trajectory_id, *own):
        await store.erase_key(tenant, owner)
    patch = Gov(
        redaction=Redaction(state="redacted", policy="retention"),
        retention=Retention(expires_at=clock.timestamp(moment)),
        eligibility=Eligibility(train="deny"),
    )
    await store.append(tenant, [governance(trajectory_id, TOMBSTONE, patch, "retention", key=TOMBSTONE)])
