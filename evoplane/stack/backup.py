"""A copy of everything that can't be rebuilt, taken while the stack runs, and its way back.

Order makes the copy consistent without stopping anybody: first the spool (what it holds is stored again
harmlessly), then each database by SQLite's online backup (one moment of it), then files that are written before a
record names them (blobs, snapshots, adapters, artifacts). What comes in meanwhile is in the next backup.
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from evoplane import __version__, files
from evoplane.settings import Settings
from evoplane.stack import state

MANIFEST = "manifest.json"
_FORM = 1

_SPOOL = "store/spool"
_DATABASES = ("control.sqlite", "store/*.sqlite", "mlflow/mlflow.db", "prefect/*.db")
_FOLDERS = ("store/blobs", "snapshots", "policies", "mlflow/artifacts", "evidently")
_MASTER_KEY = "keys/master.key"

Progress = Callable[[str], None]


class BackupError(Exception):
    """It was not made, or can't be used; nothing was changed. The message says why."""


class Entry(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    form: int = _FORM
    evoplane: str
    made_at: str
    engine: Literal["sqlite", "postgres"]
    """With postgres the event log is not in here: it is that server's to back up."""
    master_key: bool
    files: dict[str, Entry]
    """By path below the run-time directory."""


def make(config: Settings, target: Path, *, with_master_key: bool, progress: Progress) -> Manifest:
    """Copy into `target`, which must not exist yet. Raises `BackupError`."""
    if target.exists():
        raise BackupError(f"{target} exists: a backup is never written over another")
    if not config.control_db.exists():
        raise BackupError(f"there is no deployment in {config.var}")
    draft = target.with_name(target.name + ".partial")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        progress(f"spool and databases of {config.var}")
        _copy_folder(config.var, draft, _SPOOL)
        for pattern in _DATABASES:
            for database in sorted(config.var.glob(pattern)):
                _copy_database(database, draft / database.relative_to(config.var))
        for folder in _FOLDERS:
            progress(folder)
            _copy_folder(config.var, draft, folder)
        if with_master_key:
            _copy_file(config.var / _MASTER_KEY, draft / _MASTER_KEY)
        manifest = Manifest(
            evoplane=__version__,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            engine=config.store.engine,
            master_key=(draft / _MASTER_KEY).exists(),
            files={str(path.relative_to(draft)): _entry(path) for path in _files(draft)},
        )
        (draft / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        draft.rename(target)
    except (OSError, sqlite3.Error) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise BackupError(f"the backup could not be written: {error}") from error
    return manifest


def check(source: Path) -> Manifest:
    """The backup's manifest, if every file is there as it was written, and in it. Raises `BackupError`."""
    try:
        manifest = msgspec.json.decode((source / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise BackupError(f"{source} is no backup: it has no {MANIFEST}") from error
    except msgspec.DecodeError as error:
        raise BackupError(f"{source / MANIFEST} can't be read: {error}") from error
    outside = [name for name in manifest.files if not _inside(source, name)]
    if outside:
        raise BackupError(f"the backup is not to be trusted: it names {outside[0]!r}, which is not in it")
    if manifest.form != _FORM:
        raise BackupError(f"the backup has form {manifest.form}, this Evoplane reads {_FORM}")
    wrong = [
        name
        for name, entry in manifest.files.items()
        if not (source / name).is_file() or _entry(source / name) != entry
    ]
    if wrong:
        raise BackupError(f"{len(wrong)} of {len(manifest.files)} files are missing or altered, {wrong[0]} among them")
    return manifest


def restore(config: Settings, source: Path, progress: Progress) -> Manifest:
    """Put a checked backup where this configuration's deployment will be. Raises `BackupError`.

    Never over a deployment that is there, and never under a running one.
    """
    manifest = check(source)
    running = state.read(config)
    if running is not None and running.supervisor() is not None:
        raise BackupError("the stack runs: `evoplane down` first")
    if config.control_db.exists():
        raise BackupError(f"there is a deployment in {config.var}: move it away first")
    if not manifest.master_key and not (config.var / _MASTER_KEY).exists():
        progress(f"the master key is not in the backup: put it at {config.var / _MASTER_KEY} or in EVOPLANE_MASTER_KEY")
    try:
        # what makes it a deployment comes last: a restore that was interrupted is simply run again
        for name in sorted(manifest.files, key="control.sqlite".__eq__):
            _copy_file(source / name, config.var / name)
    except OSError as error:
        raise BackupError(f"the backup could not be restored: {error}") from error
    return manifest


def _inside(source: Path, name: str) -> bool:
    """Is this a file of the backup and of nothing else, on no way out of it (`..`, a link)?"""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
        return False
    return not any((source / Path(*parts[: n + 1])).is_symlink() for n in range(len(parts)))


def _copy_database(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as original,
        closing(sqlite3.connect(target)) as copy,
    ):
        original.backup(copy)


def _copy_folder(root: Path, target: Path, folder: str) -> None:
    for path in _files(root / folder):
        with suppress(FileNotFoundError):  # a spool is drained, a temporary file renamed meanwhile
            _copy_file(path, target / path.relative_to(root))


def _copy_file(source: Path, target: Path) -> None:
    with files.drafted(target) as draft:  # half a database must not look like one
        shutil.copy2(source, draft)


def _files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink())


def _entry(path: Path) -> Entry:
    with path.open("rb") as file:
        return Entry(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
