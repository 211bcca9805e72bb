"""Keys: one master, versions of a key for each tenant, and keys derived from them.

The master key wraps the tenants' keys (AES-256-GCM) and is never in a database: it comes from the variable
`EVOPLANE_MASTER_KEY` or from a file only its owner may read, made at first start. A tenant's current key wraps
the data keys of its trajectories; after a rotation older ones stay to open what they wrapped. What must
mean the same for ever (pseudonyms, hashes of links) is derived from the tenant's first key.
"""

from __future__ import annotations

import base64
import binascii
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from atdp.randomness import random_bytes
from evoplane.settings import SettingsError
from registry import audit
from registry.control import now, transaction
from registry.tenants import RegistryError

KEY_BYTES = 32
_NONCE_BYTES = 12
_ENV = "EVOPLANE_MASTER_KEY"


class KeyringError(RegistryError):
    """A key that is missing, malformed or not the one that is needed."""


class WrongMasterKey(KeyringError, SettingsError):
    """The master key is malformed, may be read by others, or is another than the one tenants' keys were wrapped by."""


@dataclass(frozen=True)
class TenantKeys:
    """One tenant's keys, open in memory."""

    tenant: str
    versions: Mapping[int, bytes] = field(repr=False)

    @property
    def current(self) -> int:
        return max(self.versions)

    def wrap(self, trajectory_id: str, data_key: bytes) -> tuple[int, bytes]:
        """(version of the tenant's key, the data key wrapped by it)."""
        version = self.current
        return version, encrypt(self.versions[version], data_key, self._about(trajectory_id))

    def unwrap(self, trajectory_id: str, version: int, wrapped: bytes) -> bytes:
        """The data key; raises `KeyringError` when the version is gone or the key is another trajectory's."""
        key = self.versions.get(version)
        if key is None:
            raise KeyringError(f"{self.tenant} has no key version {version}")
        try:
            return decrypt(key, wrapped, self._about(trajectory_id))
        except InvalidTag as error:
            raise KeyringError(f"the data key of {trajectory_id} is not what {self.tenant}'s key wrapped") from error

    def rewrap(self, trajectory_id: str, version: int, wrapped: bytes) -> bytes:
        """The data key wrapped by the current version: what a rotation asks of the store (`EventStore.rewrap`)."""
        return self.wrap(trajectory_id, self.unwrap(trajectory_id, version, wrapped))[1]

    @cached_property
    def pseudonyms(self) -> bytes:
        """The key of this tenant's pseudonyms."""
        return self.derive("pseudonyms")

    @cached_property
    def links(self) -> bytes:
        """The key of hashes by which content finds its session: a plain hash of a short message can be guessed."""
        return self.derive("links")

    def derive(self, purpose: str) -> bytes:
        """A key for one purpose (HKDF-SHA-256, RFC 5869), the same for as long as the tenant exists."""
        info = f"evoplane/{self.tenant}/{purpose}".encode()
        first = self.versions[min(self.versions)]
        return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(first)

    def _about(self, trajectory_id: str) -> bytes:
        return f"{self.tenant}\0{trajectory_id}".encode()


def encrypt(key: bytes, plain: bytes, about: bytes) -> bytes:
    """AES-256-GCM: a random nonce, then the ciphertext; `about` is authenticated with it."""
    nonce = random_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, about)


def decrypt(key: bytes, data: bytes, about: bytes) -> bytes:
    """Raises `InvalidTag` for another key, other data or another `about`."""
    return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], about)


def master_key(folder: Path, environ: Mapping[str, str] | None = None) -> bytes:
    """The master key, 32 bytes; made in `folder/master.key` (mode 0600) when there is none yet.

    Raises `WrongMasterKey`.
    """
    text = (os.environ if environ is None else environ).get(_ENV)
    if text:
        return _parse(text, f"the variable {_ENV}")
    path = folder / "master.key"
    if not path.exists():
        _make(path)
    if path.stat().st_mode & 0o077:
        raise WrongMasterKey(f"{path} may be read by others: run `chmod 600 {path}`")
    return _parse(path.read_text(), str(path))


def ensure(connection: sqlite3.Connection, master: bytes, tenant: str) -> None:
    """Give a tenant its first key, unless it has one."""
    if _has_key(connection, tenant):
        return
    with transaction(connection):
        if not _has_key(connection, tenant):  # another process may have been faster
            _add(connection, master, tenant, 1)


def rotate(connection: sqlite3.Connection, master: bytes, tenant: str, actor: str) -> int:
    """A new version of the tenant's key, for all data keys from now on; gives its number.

    Data keys wrapped before are opened by the older version until the store has wrapped them anew.
    """
    with transaction(connection):
        if connection.execute("SELECT 1 FROM tenants WHERE id=?", (tenant,)).fetchone() is None:
            raise KeyringError(f"no tenant {tenant!r}: create it with `evoplane tenant create {tenant}`")
        row = connection.execute("SELECT max(version) FROM tenant_keys WHERE tenant=?", (tenant,)).fetchone()
        version = (row[0] or 0) + 1
        _add(connection, master, tenant, version)
        audit.append(connection, actor, "tenant.key.rotate", tenant, {"version": version})
    return version


def load(connection: sqlite3.Connection, master: bytes) -> dict[str, TenantKeys]:
    """Every tenant's keys; raises `WrongMasterKey` when another than this one wrapped them."""
    versions: dict[str, dict[int, bytes]] = {}
    for row in connection.execute("SELECT tenant, version, wrapped FROM tenant_keys"):
        try:
            key = decrypt(master, row["wrapped"], _name(row["tenant"], row["version"]))
        except InvalidTag as error:
            raise WrongMasterKey(
                f"the master key does not open the key of {row['tenant']}: restore the one it was made with"
                f" ({_ENV} or keys/master.key)"
            ) from error
        versions.setdefault(row["tenant"], {})[row["version"]] = key
    return {tenant: TenantKeys(tenant, keys) for tenant, keys in versions.items()}


def _has_key(connection: sqlite3.Connection, tenant: str) -> bool:
    return connection.execute("SELECT 1 FROM tenant_keys WHERE tenant=?", (tenant,)).fetchone() is not None


def _add(connection: sqlite3.Connection, master: bytes, tenant: str, version: int) -> None:
    wrapped = encrypt(master, os.urandom(KEY_BYTES), _name(tenant, version))
    connection.execute("INSERT INTO tenant_keys VALUES (?,?,?,?)", (tenant, version, wrapped, now()))


def _name(tenant: str, version: int) -> bytes:
    return f"{tenant}\0{version}".encode()


def _make(path: Path) -> None:
    """Write a new key; when another process was faster, its key stays."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(handle, base64.b64encode(os.urandom(KEY_BYTES)) + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _parse(text: str, where: str) -> bytes:
    value = text.strip()
    try:
        key = bytes.fromhex(value) if len(value) == 2 * KEY_BYTES else base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error) as error:
        raise WrongMasterKey(f"{where} holds no key: 32 bytes in base64 or hexadecimal are needed") from error
    if len(key) != KEY_BYTES:
        raise WrongMasterKey(f"{where} holds {len(key)} bytes; a master key has {KEY_BYTES}")
    return key
