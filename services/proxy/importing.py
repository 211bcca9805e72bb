"""Taking drafts of other formats into the store, a few at a time.

An import may run beside a gateway on the same store: its transactions are small, so that the gateway's writer never
waits long for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import UNSET, structs

from atdp.convert import Content as Attached
from atdp.convert import Late
from atdp.convert.base import Item
from atdp.records import AnnotationDraft, Eligibility, EventDraft, Metadata, TrajectoryDraft
from services.proxy.drafts import Content, InvalidDraft, Signal, Stored, StoreDraft

IMPORTED = "imported"
"""Tag `role` of an imported call: neither champion nor canary, so that live statistics leave it out."""

_BATCH = 256
"""Drafts in one transaction at most (a trajectory is not divided): bounds how long the gateway's writer waits."""


Protect = Callable[[str, Iterable[StoreDraft]], list[StoreDraft]]
"""The drafts of a tenant that may be stored: redacted and sealed (`Governor.protect`)."""


class Records(Protocol):
    """What the store has; a `StoreReader`."""

    def records(self, tenant: str, trajectory_id: str) -> list[dict[str, Any]]: ...

    def record(self, tenant: str, id: str) -> dict[str, Any] | None: ...


class Appends(Protocol):
    """Anything that stores drafts durably, idempotent by id."""

    async def append(self, tenant: str, drafts: Iterable[StoreDraft]) -> list[Stored]: ...


@dataclass
class Imported:
    """What an import did."""

    trajectories: int = 0
    records: int = 0
    """Events and annotations that have a place in a chain now; those that had one before count too."""
    waiting: int = 0
    """Annotations whose target is not in the store (yet)."""
    hidden: int = 0
    """Records in which the tenant's policy hid something."""
    refused: list[str] = field(default_factory=list)
    """Trajectories that the store did not take, and why."""


class Import:
    """One import of one or several sources, as this tenant's and agent's; `train` is the tenant's say on training.

    Call `take` for each source, then `finish`: annotations about other sources' trajectories are placed last,
    whatever the order of the sources. Importing the same again changes nothing. A trajectory that the store
    refuses does not take others with it.

    `protect` is asked about everything before it is stored, and about nothing twice: what `there` has is left
    out.
    """

    def __init__(
        self,
        store: Appends,
        tenant: str,
        agent: str,
        train: str = "pending",
        protect: Protect = lambda tenant, drafts: list(drafts),
        there: Records | None = None,
        progress: Callable[[Imported], None] = lambda done: None,
    ) -> None:
        self._store, self._tenant, self._agent, self._train = store, tenant, agent, train
        self._protect, self._there, self._progress = protect, there, progress
        self._known: tuple[str, set[str]] = ("", set())
        self._events: set[str] = set()
        self._trajectories: set[str] = set()
        self._late: list[Item] = []
        self.done = Imported()

    async def take(self, items: Iterable[Item]) -> None:
        """Store the items of one source; annotations about others' trajectories wait for `finish`."""
        batch: list[list[Item]] = []
        for group in _groups(self._without_late(items)):
            batch.append(group)
            if sum(map(len, batch)) >= _BATCH:
                await self._write(batch)
                batch = []
        await self._write(batch)

    async def finish(self) -> Imported:
        """Place the annotations that waited; those whose target is not in the store wait there."""
        for start in range(0, len(self._late), _BATCH):
            await self._write([self._late[start : start + _BATCH]])
        self._late = []
        return self.done

    def _without_late(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            if isinstance(item, Late):
                self._late.append(item)
            elif isinstance(item, AnnotationDraft) and item.trajectory_id not in self._trajectories:
                self._late.append(Late("trajectory", item.trajectory_id, item))
            else:
                if isinstance(item, TrajectoryDraft):
                    self._trajectories.add(item.trajectory_id)
                elif isinstance(item, EventDraft):
                    self._events.add(item.id)
                yield item

    async def _write(self, batch: list[list[Item]]) -> None:
        given = [self._draft(item) for group in batch for item in group if not self._is_there(item)]
        if not given:
            return
        drafts = self._protect(self._tenant, given)
        try:
            stored = await self._store.append(self._tenant, drafts)
        except InvalidDraft as error:
            if len(batch) == 1:
                self.done.refused.append(str(error))
                return
            for group in batch:
                await self._write([group])
            return
        await self._settle(batch, {one.id for one in stored if not one.bound})
        same = set(map(id, given))
        self.done.hidden += sum(isinstance(d, EventDraft | AnnotationDraft) and id(d) not in same for d in drafts)
        self.done.trajectories += sum(one.seq == 0 for one in stored)
        self.done.records += sum(bool(one.seq) for one in stored)
        self._progress(self.done)

    async def _settle(self, batch: list[list[Item]], unbound: set[str]) -> None:
        """Annotations that found no event may be about a trajectory."""
        for item in (item for group in batch for item in group):
            if not isinstance(item, Late) or item.annotation.id not in unbound:
                continue
            if item.or_trajectory is not None:
                signal = self._signal(item, "trajectory", item.or_trajectory)
                again = await self._store.append(self._tenant, self._protect(self._tenant, [signal]))
                if all(one.bound for one in again):
                    self.done.records += 1
                    continue
            self.done.waiting += 1

    def _is_there(self, item: Item) -> bool:
        """Has the store the record already? It counts as imported all the same."""
        if self._there is None:
            return False
        match item:
            case Late():
                there = self._there.record(self._tenant, item.annotation.id) is not None
                self.done.records += there
                return there
            case TrajectoryDraft():
                there = bool(self._ids(item.trajectory_id))
                self.done.trajectories += there
                return there
            case EventDraft() | AnnotationDraft():
                there = item.id in self._ids(item.trajectory_id)
                self.done.records += there
                return there
        return False

    def _ids(self, trajectory_id: str) -> set[str]:
        """Ids of a trajectory's stored records, its own among them; empty when it is not stored."""
        if self._known[0] != trajectory_id:
            chain = self._there.records(self._tenant, trajectory_id) if self._there is not None else []
            self._known = (trajectory_id, {record.get("id", trajectory_id) for record in chain})
        return self._known[1]

    def _draft(self, item: Item) -> StoreDraft:
        match item:
            case Attached():
                return Content(item.media_type, item.data)
            case Late():
                return self._signal(item, *self._about(item))
            case TrajectoryDraft():
                return self._header(item)
            case EventDraft() if item.kind == "llm_call":
                return self._call(item)
        return item

    def _about(self, item: Late) -> tuple[str, str]:
        if item.target_kind != "either":
            return item.target_kind, item.target
        if item.target not in self._events and item.or_trajectory in self._trajectories:
            return "trajectory", str(item.or_trajectory)
        return "event", item.target

    def _signal(self, item: Late, kind: str, target: str) -> Signal:
        return Signal(target_kind=kind, target=target, agent=self._agent, annotation=item.annotation)  # type: ignore[arg-type]

    def _header(self, header: TrajectoryDraft) -> TrajectoryDraft:
        """The header as this tenant's; what the source denies stays denied."""
        given = header.gov.eligibility
        eligibility = given if isinstance(given, Eligibility) else Eligibility()
        train = "deny" if eligibility.train == "deny" else self._train
        changes: dict[str, Any] = {"train": train}
        for purpose in ("evaluate", "replay", "debug"):
            if getattr(eligibility, purpose) is UNSET:
                changes[purpose] = "allow"
        if eligibility.cross_tenant is UNSET:
            changes["cross_tenant"] = "deny"
        gov = structs.replace(header.gov, tenant=self._tenant, eligibility=structs.replace(eligibility, **changes))
        return structs.replace(header, gov=gov, agent=structs.replace(header.agent, name=self._agent))

    def _call(self, event: EventDraft) -> EventDraft:
        metadata = event.m if isinstance(event.m, Metadata) else Metadata()
        tags = metadata.tags if isinstance(metadata.tags, dict) else {}
        mine = {**tags, "agent": self._agent, "role": IMPORTED}
        if tags.get("role", IMPORTED) != IMPORTED:
            mine["role_at_origin"] = tags["role"]
        return structs.replace(event, m=structs.replace(metadata, tags=mine))


def _groups(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Items by trajectory: what comes before a header (contexts, contents) belongs to it."""
    group: list[Item] = []
    opened = False
    for item in items:
        starts = opened and not isinstance(item, EventDraft | AnnotationDraft)
        if starts or (not opened and len(group) >= _BATCH):
            yield group
            group, opened = [], False
        group.append(item)
        opened = opened or isinstance(item, TrajectoryDraft)
    if group:
        yield group
