"""Opening what is sealed: the original record, for whoever holds a grant that covers it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Protocol

from registry import grants
from registry.keyring import TenantKeys
from registry.policies import Policies, Principal
from services.proxy.redaction.pseudonyms import PSEUDONYM
from services.proxy.sealing import SealBroken, Sealer

_SEALED = frozenset({"sealed", "commit", "labels", "bytes"})


class SealedReader(Protocol):
    """What of a store reader is needed here."""

    def records(self, tenant: str, trajectory_id: str) -> list[dict[str, Any]]: ...
    def record(self, tenant: str, id: str) -> dict[str, Any] | None: ...
    def sealed(self, tenant: str, id: str) -> bytes | None: ...
    def trajectory_key(self, tenant: str, trajectory_id: str) -> tuple[int, bytes] | None: ...


class Opener:
    """Opens records of one tenant under one grant; each trajectory it opens is one entry of the audit log."""

    def __init__(
        self,
        reader: SealedReader,
        connection: sqlite3.Connection,
        policies: Policies,
        keys: TenantKeys,
        grant_id: str,
        who: Principal,
        snapshot: str | None = None,
    ) -> None:
        """`snapshot` is the snapshot that the records are read from, for a grant that names one."""
        self._reader = reader
        self._keys = keys
        self._permit: Callable[[str, tuple[str, ...]], grants.Grant] = lambda trajectory, denied: grants.use(
            connection, policies, grant_id, who, keys.tenant, trajectory, snapshot, denied
        )
        self._maps: dict[str, dict[str, Any]] = {}
        self._sealers: dict[str, Sealer] = {}

    def open(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with every original in its place (`StoreReader.resolve` it first, to open what is kept apart).

        Raises `GrantRefused` or `Forbidden` when the grant does not cover it, `SealBroken` when the data key was
        erased or what was sealed is not what the record committed to. What was masked stays masked.
        """
        trajectory = record["trajectory_id"]
        if trajectory not in self._maps:
            chain = self._reader.records(self._keys.tenant, trajectory)
            self._permit(trajectory, _denied(chain))
            self._maps[trajectory] = self._substitutions(chain)
        if "sealed" in record.get("ext", {}):
            record = {**record, "ext": {k: v for k, v in record["ext"].items() if k != "sealed"}}
        opened = _restored(self._leaves(record, trajectory), self._maps[trajectory])
        return self._with_prompt(opened)

    def _substitutions(self, chain: list[dict[str, Any]]) -> dict[str, Any]:
        """Pseudonym → original, of the whole trajectory: a resolved record quotes earlier ones."""
        found: dict[str, Any] = {}
        for record in chain:
            sealed = record.get("ext", {}).get("sealed")
            if isinstance(sealed, dict) and "sealed" in sealed:
                owner = sealed.get("key", record["trajectory_id"])
                found.update(self._open({k: v for k, v in sealed.items() if k != "key"}, owner))
        return found

    def _open(self, stand_in: dict[str, Any], owner: str) -> Any:
        blob = self._reader.sealed(self._keys.tenant, stand_in["sealed"])
        if blob is None:
            raise SealBroken(f"{stand_in['sealed']} was erased")
        return self._sealer(owner).open(stand_in, blob)

    def _sealer(self, owner: str) -> Sealer:
        if owner not in self._sealers:
            wrapped = self._reader.trajectory_key(self._keys.tenant, owner)
            if wrapped is None:
                raise SealBroken(f"the data key of {owner} was erased")
            self._sealers[owner] = Sealer(owner, self._keys.unwrap(owner, *wrapped))
        return self._sealers[owner]

    def _leaves(self, value: Any, owner: str) -> Any:
        """The value with each sealed leaf opened; the map of pseudonyms stays as it is."""
        if isinstance(value, dict):
            if value.keys() == _SEALED and isinstance(value["sealed"], str):
                # a client may have sent something that looks like this: that opens nothing
                known = self._reader.sealed(self._keys.tenant, value["sealed"]) is not None
                return self._open(value, owner) if known else value
            return {k: self._leaves(v, owner) for k, v in value.items()}
        return [self._leaves(item, owner) for item in value] if isinstance(value, list | tuple) else value

    def _with_prompt(self, record: dict[str, Any]) -> dict[str, Any]:
        """Prompt ids written out that the reader could not follow through sealed ones."""
        tokens = record.get("tokens") or {}
        form = tokens.get("prompt_token_ids")
        if not isinstance(form, dict) or "prefix" not in form:
            return record
        pieces: list[list[int]] = []
        current: Any = form
        while isinstance(current, dict) and "prefix" in current:
            before = self._reader.record(self._keys.tenant, current["prefix"])
            if before is None:
                return record
            earlier = self._leaves(before["tokens"], before["trajectory_id"])
            pieces += [current["append"], earlier["completion_token_ids"]]
            current = earlier["prompt_token_ids"]
        if not isinstance(current, list) or not all(isinstance(piece, list) for piece in pieces):
            return record  # ids that told a secret are gone for good
        ids = [id for piece in (current, *reversed(pieces)) for id in piece]
        return {**record, "tokens": {**tokens, "prompt_token_ids": ids}}


def open_sealed(
    reader: SealedReader,
    connection: sqlite3.Connection,
    policies: Policies,
    keys: TenantKeys,
    grant_id: str,
    record: dict[str, Any],
    who: Principal,
    snapshot: str | None = None,
) -> dict[str, Any]:
    """One record opened under a grant; see `Opener`."""
    return Opener(reader, connection, policies, keys, grant_id, who, snapshot).open(record)


def _denied(chain: list[dict[str, Any]]) -> tuple[str, ...]:
    """Purposes the trajectory's governance denies, in its header or in a later patch: deny wins."""
    denied: set[str] = set()
    for record in chain:
        gov = record.get("gov") if record["record"] == "trajectory" else record.get("patch")
        eligibility = (gov or {}).get("eligibility", {})
        denied.update(purpose for purpose, decision in eligibility.items() if decision == "deny")
    return tuple(sorted(denied))


def _restored(value: Any, originals: dict[str, Any]) -> Any:
    """The value with each pseudonym that `originals` knows replaced by what it stood for."""
    if isinstance(value, str):
        return _text(value, originals) if "<" in value else value
    if isinstance(value, dict):
        return {_key(k, originals): _restored(v, originals) for k, v in value.items()}
    return [_restored(item, originals) for item in value] if isinstance(value, list) else value


def _key(name: str, originals: dict[str, Any]) -> str:
    new = _text(name, originals) if "<" in name else name
    return new if isinstance(new, str) else str(new)


def _text(text: str, originals: dict[str, Any]) -> Any:
    whole = originals.get(text)
    if whole is not None:
        return whole
    # a number in a text of JSON was given quotes with its pseudonym
    for name in set(PSEUDONYM.findall(text)):
        original = originals.get(name)
        if original is not None:
            text = text.replace(f'"{name}"', str(original)) if not isinstance(original, str) else text
            text = text.replace(name, str(original))
    return text
