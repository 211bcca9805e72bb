"""Originals that may be kept: encrypted under a key of their trajectory's own, committed to in the record.

A record names a sealed value by `{sealed, commit, labels, bytes}`. The commitment is an HMAC-SHA-256 of the
value under a random salt that lies, encrypted, with the value: without the trajectory's key nobody can try
values against it, with it anybody can check that what was opened is what was recorded. Deleting the key erases
the values and leaves the record, its hash and its chain as they are.
"""

from __future__ import annotations

import hmac
from typing import Any

import orjson
from cryptography.exceptions import InvalidTag

from atdp.ids import new_id
from atdp.randomness import random_bytes
from registry.keyring import KEY_BYTES, TenantKeys, decrypt, encrypt
from registry.tenants import RegistryError
from services.proxy.drafts import SealedBlob, TrajectoryKey

_SALT_BYTES = 32
_FORM = b"\x01"
"""First byte of a blob: AES-256-GCM over salt and JSON."""


class SealBroken(RegistryError):
    """A sealed value that can't be opened: its key was erased, or it is not what the record committed to."""


class Sealer:
    """Seals the values of one trajectory."""

    def __init__(self, trajectory_id: str, data_key: bytes) -> None:
        self.trajectory_id = trajectory_id
        self._data_key = data_key

    @classmethod
    def fresh(cls, trajectory_id: str) -> Sealer:
        return cls(trajectory_id, random_bytes(KEY_BYTES))

    def key(self, keys: TenantKeys) -> TrajectoryKey:
        """The data key, wrapped, for the store: the first one of a trajectory stays, so it is sent every time."""
        version, wrapped = keys.wrap(self.trajectory_id, self._data_key)
        return TrajectoryKey(self.trajectory_id, version, wrapped)

    def seal(self, value: Any, labels: list[str]) -> tuple[dict[str, Any], SealedBlob]:
        """The stand-in for a JSON value, and the blob it names."""
        data = orjson.dumps(value)
        salt = random_bytes(_SALT_BYTES)
        id = new_id("blob")
        blob = SealedBlob(id, self.trajectory_id, _FORM + encrypt(self._data_key, salt + data, _about(id, self)))
        stand_in = {"sealed": id, "commit": _commit(salt, data), "labels": labels, "bytes": len(data)}
        return stand_in, blob

    def same_key(self, other: Sealer) -> bool:
        return hmac.compare_digest(self._data_key, other._data_key)

    def resealed(self, blob: SealedBlob, other: Sealer) -> SealedBlob:
        """A blob that another key of this trajectory sealed, sealed by this one; its stand-in stays what it is."""
        plain = decrypt(other._data_key, blob.data[1:], _about(blob.id, other))
        return SealedBlob(blob.id, blob.trajectory_id, _FORM + encrypt(self._data_key, plain, _about(blob.id, self)))

    def open(self, stand_in: dict[str, Any], blob: bytes) -> Any:
        """The value; raises `SealBroken` when it is not what the stand-in commits to."""
        if blob[:1] != _FORM:
            raise SealBroken(f"{stand_in['sealed']} has a form this version does not know")
        try:
            plain = decrypt(self._data_key, blob[1:], _about(stand_in["sealed"], self))
        except InvalidTag as error:
            raise SealBroken(f"{stand_in['sealed']} does not open with its trajectory's key") from error
        salt, data = plain[:_SALT_BYTES], plain[_SALT_BYTES:]
        if not hmac.compare_digest(_commit(salt, data), stand_in["commit"]):
            raise SealBroken(f"{stand_in['sealed']} is not what its record committed to")
        return orjson.loads(data)


def _commit(salt: bytes, data: bytes) -> str:
    # not `hmac.digest`, which lets go of Python's lock: an event loop may get it back only milliseconds later
    return "hmac-sha256:" + hmac.new(salt, data, "sha256").hexdigest()


def _about(id: str, sealer: Sealer) -> bytes:
    """What a blob is authenticated with: it can't stand in for another one, or in another trajectory."""
    return f"{sealer.trajectory_id}\0{id}".encode()
