"""The drafts of one exchange on their way to what may be stored of them, and what is remembered between exchanges.

All drafts of an exchange are searched together: what is found in one of them is hidden in all.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
import orjson
from msgspec import UNSET

from atdp import clock
from atdp.canonical import digest, digest_bytes
from atdp.ids import is_id
from atdp.records import AnnotationDraft, Basis, Context, EventDraft, Gov, Redaction, Retention, TrajectoryDraft
from registry.keyring import TenantKeys
from registry.tenant_policy import TenantPolicy
from services.proxy.bare import bare
from services.proxy.drafts import Content, SealedBlob, Signal, StoreDraft, StoreUnavailable
from services.proxy.hiding import hide_reasoning, hide_tokens
from services.proxy.redaction.failure import described
from services.proxy.redaction.findings import label
from services.proxy.redaction.pseudonyms import Pseudonyms
from services.proxy.redaction.redact import FAILED, Redacted, Redactor
from services.proxy.redaction.walk import stand_in
from services.proxy.sealing import Sealer

_log = logging.getLogger(__name__)

_TRAJECTORIES = 20_000
"""Trajectories remembered: one that was forgotten is treated as if something had been hidden in it."""
_CONTEXTS = 10_000
_DIGEST = re.compile("sha256:[0-9a-f]{64}")

_Chained = TrajectoryDraft | EventDraft | AnnotationDraft
_CHAINED = (TrajectoryDraft, EventDraft, AnnotationDraft)
"""As a tuple: `isinstance` takes several times as long over a union."""


class Blocked(StoreUnavailable):
    """Redaction failed and the tenant's policy says that such an exchange must not be answered."""


class Found(msgspec.Struct, gc=False):
    """What was found in a trajectory."""

    dirty: bool
    """Was anything hidden in it, or might something have been? Then its token ids are sealed."""
    masked: bool = False
    """Is something gone for good? Then token ids that would tell it are gone too."""
    known: dict[str, str] = msgspec.field(default_factory=dict)
    """Values recognised, by entity: hidden from now on wherever they stand."""


class TrajectoryState(Found, gc=False):
    """What must be remembered of a trajectory while it goes on."""

    sealer: Sealer | None = None
    began_here: bool = False
    """Did its header come through here, and nowhere before? Then nobody else has made a data key for it."""


class TenantState:
    """One tenant's policy and keys, ready to use."""

    def __init__(self, policy: TenantPolicy, keys: TenantKeys) -> None:
        self.policy = policy
        self.keys = keys
        self.redactor = Redactor(policy, Pseudonyms(keys.pseudonyms))
        self.trajectories: OrderedDict[str, TrajectoryState] = OrderedDict()
        self.contexts: OrderedDict[str, str] = OrderedDict()
        """Ids of contexts that were changed, and what they are stored under."""

    def renewed(self, policy: TenantPolicy, keys: TenantKeys) -> TenantState:
        """The same tenant after its policy or keys changed; its trajectories go on."""
        new = TenantState(policy, keys)
        new.trajectories, new.contexts = self.trajectories, self.contexts
        return new

    def known(self, drafts: list[StoreDraft]) -> int:
        """How many values are known in the trajectories of these drafts: their number only grows."""
        ids = {draft.trajectory_id for draft in drafts if isinstance(draft, _CHAINED)}
        return sum(len(self.trajectories[id].known) for id in ids if id in self.trajectories)

    def trajectory(self, id: str) -> TrajectoryState:
        known = self.trajectories.get(id)
        if known is None:
            known = self.open(id, dirty=True)
        self.trajectories.move_to_end(id)
        return known

    def found(self, ids: Iterable[str]) -> dict[str, Found]:
        """What was found in those of these trajectories that are known."""
        known = {id: self.trajectories[id] for id in ids if id in self.trajectories}
        return {id: Found(each.dirty, each.masked, dict(each.known)) for id, each in known.items()}

    def learn(self, found: Mapping[str, Found], more: bool = False) -> None:
        """Take over what was found in trajectories elsewhere; `more` may have been found in those unknown here."""
        for id, each in found.items():
            trajectory = self.open(id, each.dirty or more)
            trajectory.dirty = trajectory.dirty or each.dirty
            trajectory.masked = trajectory.masked or each.masked
            trajectory.known.update(each.known)

    def open(self, id: str, dirty: bool, began_here: bool = False) -> TrajectoryState:
        opened = self.trajectories.setdefault(id, TrajectoryState(dirty, began_here=began_here))
        if len(self.trajectories) > _TRAJECTORIES:
            self.trajectories.popitem(last=False)
        return opened


class Protection:
    """The drafts of one exchange on their way."""

    def __init__(self, state: TenantState, sealer: Callable[[TenantState, str], Sealer], since: str | None) -> None:
        """`since` is when this governor took another's place, if it did."""
        self._state = state
        self._since = since
        self._policy = state.policy
        self._new_sealer = sealer
        self.found = False
        """Was there anything to hide, or anything that could not be searched?"""
        self._blobs: list[SealedBlob] = []
        self._sealers: dict[str, Sealer] = {}
        self._digests: dict[str, str] = {}

    def protect(self, drafts: list[StoreDraft]) -> list[StoreDraft]:
        others = {id(d): self._other(d) for d in drafts if not isinstance(d, (*_CHAINED, Signal, Context))}
        contexts = {id(d): self._context(d) for d in drafts if isinstance(d, Context)}
        records = self._records(
            [d.annotation if isinstance(d, Signal) else d for d in drafts if isinstance(d, (*_CHAINED, Signal))]
        )
        result: list[StoreDraft] = []
        for draft in drafts:
            if isinstance(draft, Signal):
                result.append(self._signal(draft, records[id(draft.annotation)]))
            elif isinstance(draft, _CHAINED):
                result.append(records[id(draft)])
            else:
                result.append(contexts.get(id(draft)) or others[id(draft)])
        keys = [sealer.key(self._state.keys) for sealer in self._sealers.values()]
        # events name their blobs, so those come first; a header comes before all of its trajectory
        at = next(
            (i for i, d in enumerate(result) if isinstance(d, (EventDraft, AnnotationDraft, Signal))), len(result)
        )
        return [*result[:at], *keys, *self._blobs, *result[at:]]

    # -- content and contexts

    def _other(self, draft: Any) -> StoreDraft:
        if not isinstance(draft, Content):
            return draft
        data = draft.data
        try:
            if draft.media_type.endswith("json"):
                value = orjson.loads(data)
                redacted = self._state.redactor.redact({"content": value}).record["content"]
                data = draft.data if redacted is value else orjson.dumps(redacted)
            elif draft.media_type.startswith("text/"):
                text = data.decode()
                redacted = self._state.redactor.redact({"content": text}).record["content"]
                data = draft.data if redacted is text else orjson.dumps(redacted).strip(b'"')
        except ValueError:
            data = orjson.dumps(stand_in([FAILED]))
        if data is draft.data:
            return draft
        self.found = True
        self._digests[digest_bytes(draft.data)] = digest_bytes(data)
        return msgspec.structs.replace(draft, data=data)

    def _context(self, context: Context) -> Context:
        body = msgspec.to_builtins(context.body)
        new = _with_digests_of(body, self._state.redactor.redact({"body": body}).record["body"])
        tools = [{**t, "schema": self._digests.get(t["schema"], t["schema"])} for t in new.get("tools", ())]
        if tools and tools != new["tools"]:
            new = {**new, "tools": tools}
        if new is body:
            return context
        self.found = True
        changed = msgspec.convert({"record": "context", "atdp": context.atdp, "id": digest(new), "body": new}, Context)
        self._state.contexts[context.id] = changed.id
        if len(self._state.contexts) > _CONTEXTS:
            self._state.contexts.popitem(last=False)
        return changed

    # -- records

    def _records(self, drafts: list[_Chained]) -> dict[int, Any]:
        """The protected form of each draft, by the draft's identity."""
        by_trajectory: dict[str, list[_Chained]] = {}
        for draft in drafts:
            if isinstance(draft, TrajectoryDraft):
                parent = draft.parent.trajectory_id if draft.parent is not UNSET else UNSET
                before = self._state.trajectories.get(parent) if parent is not UNSET else None
                dirty = before.dirty if before is not None else parent is not UNSET
                dirty = dirty or (self._since is not None and draft.time <= self._since)
                self._state.open(draft.trajectory_id, dirty, began_here=self._since is None)
            by_trajectory.setdefault(draft.trajectory_id, []).append(draft)
        done: dict[int, Any] = {}
        for id_, group in by_trajectory.items():
            late = all(isinstance(draft, AnnotationDraft) for draft in group)
            trajectory = TrajectoryState(dirty=True) if late else self._state.trajectory(id_)
            self._group(group, trajectory, done)
        return done

    def _group(self, group: list[_Chained], trajectory: TrajectoryState, done: dict[int, Any]) -> None:
        found = self._state.redactor.redact_all([msgspec.to_builtins(draft) for draft in group], trajectory.known)
        if any(redacted.failed for redacted in found) and self._policy.on_failure == "block":
            raise Blocked("a value could not be searched")
        hidden = any(redacted.changed for redacted in found)
        self.found = self.found or hidden
        trajectory.dirty = trajectory.dirty or hidden
        masked_now = any(redacted.masked or redacted.failed for redacted in found)
        trajectory.masked = trajectory.masked or masked_now
        for draft, redacted in zip(group, found, strict=True):
            done[id(draft)] = self._finished(draft, redacted, trajectory, masked_now)

    def _as_it_is(self, draft: _Chained, redacted: Redacted, trajectory: TrajectoryState) -> bool:
        """May the draft be stored as it came? Most may."""
        if redacted.changed:
            return False
        if isinstance(draft, EventDraft):
            return (
                not trajectory.dirty
                and self._policy.hides_reasoning == "keep"
                and draft.ctx not in self._state.contexts
            )
        return True

    def _finished(self, draft: _Chained, redacted: Redacted, trajectory: TrajectoryState, masked_now: bool) -> Any:
        if self._as_it_is(draft, redacted, trajectory):
            return under_policy(draft, self._policy) if isinstance(draft, TrajectoryDraft) else draft
        record, labels = dict(redacted.record), sorted({label(entity) for entity in redacted.entities})
        before = len(self._blobs)
        hidden = redacted.changed
        if isinstance(draft, EventDraft):
            context = self._state.contexts.get(draft.ctx)
            if context is not None:
                record = {**record, "ctx": context}
            seal = self._seal_in(trajectory, draft.trajectory_id)
            if self._policy.hides_reasoning != "keep":
                record, changed = hide_reasoning(record, seal if self._policy.hides_reasoning == "seal" else None)
                hidden = hidden or changed
                trajectory.dirty = trajectory.dirty or changed
            if trajectory.dirty:
                record = hide_tokens(record, seal, masked_now, trajectory.masked)
                hidden = hidden or "tokens" in record
        if redacted.substitutions and self._policy.seal and not isinstance(draft, TrajectoryDraft):
            own = isinstance(draft, AnnotationDraft)
            # the trajectory of a signal is for the store to find: its originals have a key of their own
            owner = draft.id if own else draft.trajectory_id
            holder = TrajectoryState(dirty=True) if own else trajectory
            sealed = self._seal_in(holder, owner)(redacted.substitutions, labels)
            record = {
                **record,
                "ext": {**record.get("ext", {}), "sealed": {**sealed, **({"key": owner} if own else {})}},
            }
        if isinstance(draft, TrajectoryDraft):
            return under_policy(self._converted(draft, record), self._policy)
        if not hidden and record == redacted.record and not redacted.changed:
            return draft
        converted = self._converted(draft, record)
        if isinstance(draft, EventDraft) and (hidden or redacted.changed):
            state: Literal["redacted", "sealed"] = "sealed" if len(self._blobs) > before else "redacted"
            gov = draft.gov if isinstance(draft.gov, Gov) else Gov()
            gov = msgspec.structs.replace(gov, redaction=Redaction(state=state, policy=self._policy.name))
            return msgspec.structs.replace(converted, gov=gov)
        return converted

    def _seal_in(self, trajectory: TrajectoryState, owner: str) -> Callable[[Any, list[str]], dict[str, Any]]:
        """A function that seals a value in a trajectory, or removes it when the policy keeps nothing."""

        def seal(value: Any, labels: list[str]) -> dict[str, Any]:
            if not self._policy.seal:
                return stand_in(labels)
            if trajectory.sealer is None:
                fresh = trajectory.began_here
                trajectory.sealer = Sealer.fresh(owner) if fresh else self._new_sealer(self._state, owner)
            named, blob = trajectory.sealer.seal(value, labels)
            self._sealers[owner] = trajectory.sealer
            self._blobs.append(blob)
            return named

        return seal

    def _signal(self, signal: Signal, annotation: AnnotationDraft) -> Signal:
        target = signal.target
        if not (is_id(target, "ev") or is_id(target, "tr")):
            target = self._state.redactor.text(target)
        return msgspec.structs.replace(signal, target=target, annotation=annotation)

    @staticmethod
    def _converted(draft: Any, record: dict[str, Any]) -> Any:
        """The record as a draft; when redaction left a value where the format wants another, without payload."""
        try:
            return msgspec.convert(record, type(draft))
        except msgspec.ValidationError as error:
            _log.error("%s is stored without payload: %s", getattr(draft, "id", "a trajectory"), described(error))
            return bare(draft)


def under_policy(draft: TrajectoryDraft, policy: TenantPolicy) -> TrajectoryDraft:
    """The header under the tenant's policy: redaction, retention, legal basis."""
    gov: dict[str, Any] = {"redaction": Redaction(state="none", policy=policy.name)}
    if policy.retention_days is not None or policy.legal_hold:
        days = policy.retention_days
        expires = policy.expires(clock.parse(draft.time))
        gov["retention"] = Retention(
            policy=UNSET if days is None else f"{days}d",
            expires_at=UNSET if expires is None else clock.timestamp(expires),
            legal_hold=True if policy.legal_hold else UNSET,
        )
    if policy.basis is not None:
        gov["basis"] = Basis(kind=policy.basis, ref=UNSET if policy.basis_ref is None else policy.basis_ref)
    return msgspec.structs.replace(draft, gov=msgspec.structs.replace(draft.gov, **gov))


def _with_digests_of(body: Any, redacted: Any) -> Any:
    """Digests as they were: their digits may look like somebody's licence number, and hide nothing."""
    if isinstance(body, dict) and isinstance(redacted, dict):
        kept = {key: _with_digests_of(body.get(key), value) for key, value in redacted.items()}
        return redacted if all(kept[key] is redacted[key] for key in kept) else kept
    if isinstance(body, list | tuple) and isinstance(redacted, list | tuple) and len(body) == len(redacted):
        items = [_with_digests_of(before, after) for before, after in zip(body, redacted, strict=True)]
        return redacted if all(a is b for a, b in zip(items, redacted, strict=True)) else items
    return body if isinstance(body, str) and _DIGEST.fullmatch(body) else redacted
