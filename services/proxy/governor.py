"""The one point where what was captured becomes what may be stored.

`Governor.protect` takes the drafts of one exchange and gives those that may be stored: redacted, with the
originals sealed where the tenant's policy lets them be kept, under the tenant's retention and legal basis.
Everything happens before a record is hashed. Whatever goes wrong, nothing is stored in the clear.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from atdp import clock
from atdp.records import EventDraft, Parent, TrajectoryDraft
from registry.keyring import TenantKeys
from registry.tenant_policy import DEFAULT, TenantPolicy
from services.proxy.bare import bare_all
from services.proxy.drafts import SealedBlob, StoreDraft, TrajectoryKey
from services.proxy.protection import Blocked, Found, Protection, TenantState, under_policy
from services.proxy.redaction.failure import described
from services.proxy.redaction.redact import FAILED
from services.proxy.sealing import Sealer

_log = logging.getLogger(__name__)

_STRIPPED = 10_000
"""Contexts without payload that are remembered, at most."""

KeyOf = Callable[[str, str], "tuple[int, bytes] | None"]
"""(tenant, trajectory) → the version and the wrapped data key that the store has, or None."""


class Governance(Protocol):
    """What the governor needs to know; `Picture` of the control watcher has it, in memory."""

    @property
    def policies(self) -> Mapping[str, TenantPolicy]: ...

    @property
    def tenant_keys(self) -> Mapping[str, TenantKeys]: ...


class _Fixed(msgspec.Struct, frozen=True):
    policies: Mapping[str, TenantPolicy]
    tenant_keys: Mapping[str, TenantKeys]


class Ready(msgspec.Struct, frozen=True):
    """The first drafts of an exchange, in which nothing was to be hidden, under this policy."""

    policy: TenantPolicy
    drafts: list[StoreDraft]
    known: int
    """Values that were known in their trajectories: one recognised since may stand here unrecognised."""


class Governor:
    """Redacts and seals. For one thread."""

    def __init__(
        self, governance: Callable[[], Governance], key_of: KeyOf | None = None, *, succeeds: bool = False
    ) -> None:
        """`governance` gives the policies and keys of this moment; `key_of` asks the store for a data key.

        The store is asked only about a trajectory that another governor began to seal: one whose header did not
        come through here, and any when this governor `succeeds` one that is gone and may be given its work again: of a
        trajectory that began before, nobody here knows what was hidden in it.
        """
        self._governance = governance
        self._key_of = key_of
        self._since = clock.now() if succeeds else None
        """What began earlier may have come to the governor before."""
        self._tenants: dict[str, TenantState] = {}
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
                return Ready(state.policy, clean, state.known(drafts)) if len(clean) == len(drafts) else None
        return None

    def protect(self, tenant: str, drafts: Iterable[StoreDraft], ready: Ready | None = None) -> list[StoreDraft]:
        """The drafts that may be stored; `ready` is what `prepare` gave for the first of them.

        Raises `Blocked`, and nothing else.
        """
        drafts = list(drafts)
        try:
            state = self._tenant(tenant)
            if ready is not None and ready.policy == state.policy and ready.known == state.known(ready.drafts):
                rest = self._if_clean(state, drafts[len(ready.drafts) :])
                if rest is not None:
                    return [*ready.drafts, *rest]
            if state.policy.redaction == "off" and state.policy.hides_reasoning == "keep":
                return [
                    under_policy(draft, state.policy) if isinstance(draft, TrajectoryDraft) else draft
                    for draft in drafts
                ]
            return Protection(state, self._sealer, self._since).protect(drafts)
        except Blocked:
            raise
        except Exception as error:
            _log.error("an exchange of %s is stored without payload: %s", tenant, described(error))
            if self._policy(tenant).on_failure == "block":
                raise Blocked("redaction failed") from error
            if len(self._stripped) > _STRIPPED:
                self._stripped.clear()
            return bare_all(drafts, self._stripped)

    def _if_clean(self, state: TenantState, drafts: list[StoreDraft]) -> list[StoreDraft] | None:
        """As they may be stored, when nothing is found in them: then it does not matter what they stand beside."""
        exchange = Protection(state, self._sealer, self._since)
        protected = exchange.protect(drafts)
        return None if exchange.found else protected

    def found(self, tenant: str, trajectories: Collection[str]) -> dict[str, Found]:
        """What was found in these trajectories so far, for another governor to go on from. Raises nothing."""
        unknown = {} if self._since is None else {id: Found(dirty=True) for id in trajectories}
        try:
            return unknown | self._tenant(tenant).found(trajectories)
        except Exception as error:
            _log.error("what was found in trajectories of %s is not known: %s", tenant, described(error))
            return unknown

    def protect_for(
        self, tenant: str, drafts: list[StoreDraft], found: Mapping[str, Found]
    ) -> tuple[list[StoreDraft], dict[str, Found]]:
        """`protect` instead of another governor, that has `found` this and shall `adopt` both. Raises `Blocked`."""
        concerned = trajectories_of(drafts)
        with contextlib.suppress(Exception):  # said by `protect`
            state = self._tenant(tenant)
            state.trajectories.clear()  # the other one knows better
            state.learn(found)
        return self.protect(tenant, drafts), self.found(tenant, concerned)

    def adopt(self, tenant: str, drafts: list[StoreDraft], found: Mapping[str, Found]) -> list[StoreDraft]:
        """What another governor's `protect_for` gave, as it may be stored. Raises nothing."""
        with contextlib.suppress(Exception):  # without keys there is nothing to remember it for
            self._tenant(tenant).learn(found, more=self._since is not None)
        return self.reconciled(tenant, drafts)

    def reconciled(self, tenant: str, drafts: list[StoreDraft]) -> list[StoreDraft]:
        """Drafts that another governor sealed, or this one a while ago, sealed by the keys that their trajectories have
        by now: the store keeps the first key of each, and who can't ask it what that is makes one. Raises nothing.
        """
        events = {draft.trajectory_id for draft in drafts if isinstance(draft, EventDraft)}
        keys = {d.trajectory_id: d for d in drafts if isinstance(d, TrajectoryKey) and d.trajectory_id in events}
        if not keys:
            return drafts
        try:
            state = self._tenant(tenant)
            both = {id: self._both(state, key) for id, key in keys.items()}
            differ = {id: (of, made) for id, (of, made) in both.items() if not of.same_key(made)}
            return [_sealed_by(draft, differ, state.keys) for draft in drafts] if differ else drafts
        except Exception as error:
            _log.error("what %s has sealed stays under the key that came with it: %s", tenant, described(error))
            return drafts

    def _both(self, state: TenantState, key: TrajectoryKey) -> tuple[Sealer, Sealer]:
        """The sealer of a trajectory from now on, and the one with this key."""
        id, trajectory = key.trajectory_id, state.trajectory(key.trajectory_id)
        made = Sealer(id, state.keys.unwrap(id, key.key_version, key.wrapped))
        trajectory.sealer = self._stored_sealer(state, id) or trajectory.sealer or made
        return trajectory.sealer, made

    def journaling(self, tenant: str) -> tuple[TenantPolicy, TenantKeys] | None:
        """The policy and the keys under which a tenant's jobs may lie encrypted until they are redacted.

        None when they must not, or there is no key.
        """
        governance = self._governance()
        policy, keys = governance.policies.get(tenant, DEFAULT), governance.tenant_keys.get(tenant)
        return None if keys is None or not policy.journals else (policy, keys)

    def keys_of(self, tenant: str) -> TenantKeys:
        """Raises `KeyError`."""
        return self._governance().tenant_keys[tenant]

    def under(self, tenant: str, policy: TenantPolicy) -> Governor:
        """Another one, for what was captured under this policy and may have come through a governor before."""
        return Governor(lambda: _Fixed({tenant: policy}, self._governance().tenant_keys), self._key_of, succeeds=True)

    def name(self, tenant: str, text: str) -> str:
        """A name from outside, such as a session's id, in the form in which `protect` stores it."""
        try:
            return self._tenant(tenant).redactor.text(text)
        except Exception as error:
            _log.error("a name of %s could not be redacted: %s", tenant, described(error))
            return f"<{FAILED.upper()}>"

    def _policy(self, tenant: str) -> TenantPolicy:
        return self._governance().policies.get(tenant, DEFAULT)

    def _tenant(self, tenant: str) -> TenantState:
        governance = self._governance()
        policy, keys = governance.policies.get(tenant, DEFAULT), governance.tenant_keys[tenant]
        known = self._tenants.get(tenant)
        if known is None:
            known = self._tenants[tenant] = TenantState(policy, keys)
        elif known.policy is not policy or known.keys is not keys:
            if known.policy != policy or known.keys != keys:
                known = self._tenants[tenant] = known.renewed(policy, keys)
            else:
                known.policy, known.keys = policy, keys
        return known

    def _sealer(self, state: TenantState, id: str) -> Sealer:
        """The sealer of a trajectory: with its data key, whoever made it."""
        return self._stored_sealer(state, id) or Sealer.fresh(id)

    def _stored_sealer(self, state: TenantState, id: str) -> Sealer | None:
        """With the data key that the store has; None when it has none, or can't be asked."""
        if self._key_of is None:
            return None
        try:
            stored = self._key_of(state.keys.tenant, id)
        except Exception as error:
            # most likely there is none: the store keeps the first key of a trajectory, and this may be it
            _log.warning("the store can't say whether %s has a data key: %s", id, described(error))
            stored = None
        return None if stored is None else Sealer(id, state.keys.unwrap(id, *stored))


def trajectories_of(drafts: Iterable[StoreDraft]) -> list[str]:
    """Those that records among the drafts are in, and those that these were begun from."""
    headers = [draft for draft in drafts if isinstance(draft, TrajectoryDraft)]
    parents = [draft.parent.trajectory_id for draft in headers if isinstance(draft.parent, Parent)]
    own = [draft.trajectory_id for draft in drafts if isinstance(draft, EventDraft | TrajectoryDraft)]
    return [id for id in dict.fromkeys([*own, *parents]) if isinstance(id, str)]


def _sealed_by(draft: StoreDraft, differ: Mapping[str, tuple[Sealer, Sealer]], keys: TenantKeys) -> StoreDraft:
    """The draft, sealed by the first of its trajectory's two sealers and no longer by the second."""
    if isinstance(draft, SealedBlob) and draft.trajectory_id in differ:
        of, made = differ[draft.trajectory_id]
        return of.resealed(draft, made)
    if isinstance(draft, TrajectoryKey) and draft.trajectory_id in differ:
        return differ[draft.trajectory_id][0].key(keys)
    return draft
