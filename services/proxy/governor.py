"""The one point where what was captured becomes what may be stored.

`Governor.protect` takes the drafts of one exchange and gives those that may be stored: redacted, with the
originals sealed where the tenant's policy lets them be kept, under the tenant's retention and legal basis.
Everything happens before a record is hashed. Whatever goes wrong, nothing is stored in the clear.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, Protocol

import msgspec
import orjson
from msgspec import UNSET

from atdp import clock
from atdp.canonical import digest, digest_bytes
from atdp.ids import is_id
from atdp.records import AnnotationDraft, Basis, Context, EventDraft, Gov, Redaction, Retention, TrajectoryDraft
from registry.keyring import TenantKeys
from registry.tenant_policy import DEFAULT, TenantPolicy
from services.proxy.bare import bare, bare_all
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
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_CONTEXTS = 10_000

KeyOf = Callable[[str, str], "tuple[int, bytes] | None"]
"""(tenant, trajectory) → the version and the wrapped data key that the store has, or None."""

_Chained = TrajectoryDraft | EventDraft | AnnotationDraft
_CHAINED = (TrajectoryDraft, EventDraft, AnnotationDraft)
"""As a tuple: `isinstance` takes several times as long over a union."""


class Governance(Protocol):
    """What the governor needs to know; `Picture` of the control watcher has it, in memory."""

    @property
    def policies(self) -> Mapping[str, TenantPolicy]: ...

    @property
    def tenant_keys(self) -> Mapping[str, TenantKeys]: ...


class Blocked(StoreUnavailable):
    """Redaction failed and the tenant's policy says that such an exchange must not be answered."""


class Ready(msgspec.Struct, frozen=True):
    """The first drafts of an exchange, in which nothing was to be hidden, under this policy."""

    policy: TenantPolicy
    drafts: list[StoreDraft]


class _Trajectory(msgspec.Struct, gc=False):
    """What must be remembered of a trajectory while it goes on."""

    dirty: bool
    """Was anything hidden in it, or might something have been? Then its token ids are sealed."""
    masked: bool = False
    """Is something gone for good? Then token ids that would tell it are gone too."""
    known: dict[str, str] = msgspec.field(default_factory=dict)
    """Values recognised, by entity: hidden from now on wherever they stand."""
    sealer: Sealer | None = None
    began_here: bool = False
    """Did its header come through here, and nowhere before? Then nobody else has made a data key for it."""


class _Tenant:
    """One tenant's policy and keys, ready to use."""

    def __init__(self, policy: TenantPolicy, keys: TenantKeys) -> None:
        self.policy = policy
        self.keys = keys
        self.redactor = Redactor(policy, Pseudonyms(keys.pseudonyms))
        self.trajectories: OrderedDict[str, _Trajectory] = OrderedDict()
        self.contexts: OrderedDict[str, str] = OrderedDict()
        """Ids of contexts that were changed, and what they are stored under."""

    def renewed(self, policy: TenantPolicy, keys: TenantKeys) -> _Tenant:
        """The same tenant after its policy or keys changed; its trajectories go on."""
        new = _Tenant(policy, keys)
        new.trajectories, new.contexts = self.trajectories, self.contexts
        return new

    def trajectory(self, id: str) -> _Trajectory:
        known = self.trajectories.get(id)
        if known is None:
            known = self.open(id, dirty=True)
        self.trajectories.move_to_end(id)
        return known

    def open(self, id: str, dirty: bool, began_here: bool = False) -> _Trajectory:
        opened = self.trajectories.setdefault(id, _Trajectory(dirty, began_here=began_here))
        if len(self.trajectories) > _TRAJECTORIES:
            self.trajectories.popitem(last=False)
        return opened


class Governor:
    """Redacts and seals. For one thread."""

    def __init__(
        self, governance: Callable[[], Governance], key_of: KeyOf | None = None, *, succeeds: bool = False
    ) -> None:
        """`governance` gives the policies and keys of this moment; `key_of` asks the store for a data key.

        The store is asked only about a trajectory that another governor began to seal: one whose header did not
        come through here, and any when this governor `succeeds` one that is gone and may be given its work again.
        """
        self._governance = governance
        self._key_of = key_of
        self._succeeds = succeeds
        self._tenants: dict[str, _Tenant] = {}
        self._stripped: dict[str, str] = {}
        """Contexts that a failure has stripped, and what they became."""

    def prepare(self, tenant: str, drafts: list[StoreDraft]) -> Ready | None:
        """The first drafts of an exchange as they may be stored, before the others are there.

        None when something is hidden in them: then that is hidden in the others too, and what is found in those in
        these. Raises nothing.
        """
        with contextlib.suppress(Exception):  # what goes wrong goes wrong again where it is dealt with
            state = self._tenant(tenant)
            if state.policy.redaction != "off" and (clean := self._if_clean(state, drafts)) is not None:
                return Ready(state.policy, clean) if len(clean) == len(drafts) else None
        return None

    def protect(self, tenant: str, drafts: Iterable[StoreDraft], ready: Ready | None = None) -> list[StoreDraft]:
        """The drafts that may be stored; `ready` is what `prepare` gave for the first of them.

        Raises `Blocked`, and nothing else.
        """
        drafts = list(drafts)
        try:
            state = self._tenant(tenant)
            if ready is not None and ready.policy == state.policy:
                rest = self._if_clean(state, drafts[len(ready.drafts) :])
                if rest is not None:
                    return [*ready.drafts, *rest]
            if state.policy.redaction == "off" and state.policy.hides_reasoning == "keep":
                return [
                    _header(draft, state.policy) if isinstance(draft, TrajectoryDraft) else draft for draft in drafts
                ]
            return _Exchange(state, self._sealer, not self._succeeds).protect(drafts)
        except Blocked:
            raise
        except Exception as error:
            _log.error("an exchange of %s is stored without payload: %s", tenant, described(error))
            if self._policy(tenant).on_failure == "block":
                raise Blocked("redaction failed") from error
            if len(self._stripped) > _CONTEXTS:
                self._stripped.clear()
            return bare_all(drafts, self._stripped)

    def _if_clean(self, state: _Tenant, drafts: list[StoreDraft]) -> list[StoreDraft] | None:
        """As they may be stored, when nothing is found in them: then it does not matter what they stand beside."""
        exchange = _Exchange(state, self._sealer, not self._succeeds)
        protected = exchange.protect(drafts)
        return None if exchange.found else protected

    def name(self, tenant: str, text: str) -> str:
        """A name from outside, such as a session's id, in the form in which `protect` stores it."""
        try:
            return self._tenant(tenant).redactor.text(text)
        except Exception as error:
            _log.error("a name of %s could not be redacted: %s", tenant, described(error))
            return f"<{FAILED.upper()}>"

    def _policy(self, tenant: str) -> TenantPolicy:
        return self._governance().policies.get(tenant, DEFAULT)

    def _tenant(self, tenant: str) -> _Tenant:
        governance = self._governance()
        policy, keys = governance.policies.get(tenant, DEFAULT), governance.tenant_keys[tenant]
        known = self._tenants.get(tenant)
        if known is None:
            known = self._tenants[tenant] = _Tenant(policy, keys)
        elif known.policy is not policy or known.keys is not keys:
            if known.policy != policy or known.keys != keys:
                known = self._tenants[tenant] = known.renewed(policy, keys)
            else:
                known.policy, known.keys = policy, keys
        return known

    def _sealer(self, state: _Tenant, id: str) -> Sealer:
        """The sealer of a trajectory: with its data key, whoever made it."""
        if self._key_of is None:
            return Sealer.fresh(id)
        try:
            stored = self._key_of(state.keys.tenant, id)
        except Exception as error:
            # most likely there is none: the store keeps the first key of a trajectory, and this may be it
            _log.warning("the store can't say whether %s has a data key: %s", id, described(error))
            stored = None
        return Sealer.fresh(id) if stored is None else Sealer(id, state.keys.unwrap(id, *stored))


class _Exchange:
    """The drafts of one exchange on their way."""

    def __init__(self, state: _Tenant, sealer: Callable[[_Tenant, str], Sealer], first: bool) -> None:
        self._state = state
        self._first = first
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
                self._state.open(draft.trajectory_id, dirty, began_here=self._first)
            by_trajectory.setdefault(draft.trajectory_id, []).append(draft)
        done: dict[int, Any] = {}
        for id_, group in by_trajectory.items():
            late = all(isinstance(draft, AnnotationDraft) for draft in group)
            trajectory = _Trajectory(dirty=True) if late else self._state.trajectory(id_)
            self._group(group, trajectory, done)
        return done

    def _group(self, group: list[_Chained], trajectory: _Trajectory, done: dict[int, Any]) -> None:
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

    def _as_it_is(self, draft: _Chained, redacted: Redacted, trajectory: _Trajectory) -> bool:
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

    def _finished(self, draft: _Chained, redacted: Redacted, trajectory: _Trajectory, masked_now: bool) -> Any:
        if self._as_it_is(draft, redacted, trajectory):
            return _header(draft, self._policy) if isinstance(draft, TrajectoryDraft) else draft
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
            holder = _Trajectory(dirty=True) if own else trajectory
            sealed = self._seal_in(holder, owner)(redacted.substitutions, labels)
            record = {
                **record,
                "ext": {**record.get("ext", {}), "sealed": {**sealed, **({"key": owner} if own else {})}},
            }
        if isinstance(draft, TrajectoryDraft):
            return _header(self._converted(draft, record), self._policy)
        if not hidden and record == redacted.record and not redacted.changed:
            return draft
        converted = self._converted(draft, record)
        if isinstance(draft, EventDraft) and (hidden or redacted.changed):
            state: Literal["redacted", "sealed"] = "sealed" if len(self._blobs) > before else "redacted"
            gov = draft.gov if isinstance(draft.gov, Gov) else Gov()
            gov = msgspec.structs.replace(gov, redaction=Redaction(state=state, policy=self._policy.name))
            return msgspec.structs.replace(converted, gov=gov)
        return converted

    def _seal_in(self, trajectory: _Trajectory, owner: str) -> Callable[[Any, list[str]], dict[str, Any]]:
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


def _header(draft: TrajectoryDraft, policy: TenantPolicy) -> TrajectoryDraft:
    """The header under the tenant's policy: redaction, retention, legal basis."""
    gov: dict[str, Any] = {"redaction": Redaction(state="none", policy=policy.name)}
    if policy.retention_days is not None or policy.legal_hold:
        days = policy.retention_days
        expires = UNSET if days is None else clock.timestamp(clock.parse(draft.time) + timedelta(days=days))
        gov["retention"] = Retention(
            policy=UNSET if days is None else f"{days}d",
            expires_at=expires,
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
