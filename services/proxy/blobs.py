"""Large content in a blob store: any fsspec URL, by default a directory beside the tables.

A blob is named by its tenant and its digest and is durable before the row that names it is committed. A
crash in between leaves a blob that nothing names; `sweep` removes those. Both happen in a transaction of the
tenant's log, which has one at a time, so no blob is swept that is about to be named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from evoplane.files import sync_folder
from services.proxy import faults

INLINE_BYTES = 256 * 2**10
"""Content up to this size is a row of the table."""

_UNFINISHED = ".new"


class Blobs:
    """The blobs under one URL. All errors are `OSError`."""

    def __init__(self, url: str, inline_bytes: int = INLINE_BYTES) -> None:
        self._url = url
        self._inline_bytes = inline_bytes

    def takes(self, size: int) -> bool:
        """Is content of this size kept here?"""
        return size > self._inline_bytes

    def put(self, tenant: str, digest: str, data: bytes) -> None:
        """Keep the bytes; durable when this returns."""
        with _os_errors():
            path = self._path(tenant, digest)
            if self._local is not None:
                _put_durably(Path(path), data)
            else:
                self._fs.pipe_file(path, data)
        faults.reach("after_blob_write")

    def get(self, tenant: str, digest: str) -> bytes | None:
        """The bytes; None when there are none."""
        try:
            with _os_errors():
                data: bytes = self._fs.cat_file(self._path(tenant, digest))
        except FileNotFoundError:
            return None
        return data

    def folders(self, tenant: str) -> list[str]:
        """The folders that hold a tenant's blobs, to `sweep` one by one."""
        with _os_errors():
            root = f"{self._resolved[1]}/{tenant}"
            return list(self._fs.ls(root, detail=False)) if self._fs.exists(root) else []

    def sweep(self, folder: str, named: Callable[[list[str]], set[str]]) -> int:
        """Remove what is not among those that `named` gives of a list of digests; gives the number removed."""
        with _os_errors():
            paths = list(self._fs.ls(folder, detail=False))
        kept = named([_digest(path) for path in paths])
        orphans = [path for path in paths if path.endswith(_UNFINISHED) or _digest(path) not in kept]
        with _os_errors():
            for path in orphans:
                self._fs.rm_file(path)
        return len(orphans)

    @cached_property
    def _resolved(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs  # only who has large content needs it

        fs, root = url_to_fs(self._url)
        return fs, str(root)

    @property
    def _fs(self) -> Any:
        return self._resolved[0]

    @property
    def _local(self) -> Path | None:
        """The directory, when it is one of this machine: then we see to the disk ourselves."""
        fs, root = self._resolved
        return Path(root) if "file" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)) else None

    def _path(self, tenant: str, digest: str) -> str:
        name = digest.removeprefix("sha256:")
        return f"{self._resolved[1]}/{tenant}/{name[:2]}/{name}"


@contextmanager
def _os_errors() -> Iterator[None]:
    """What an object store's client raises is its own; here it is an `OSError` like any other."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"the blob store failed: {error}") from error


def _digest(path: str) -> str:
    return f"sha256:{path.rsplit('/', 1)[-1]}"


def _put_durably(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}{_UNFINISHED}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        faults.reach("in_blob_write")
        os.fsync(handle)
    finally:
        os.close(handle)
    fresh.rename(path)
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
        sync_folder(folder)
