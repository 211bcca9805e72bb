"""Writing a file so that whoever reads it, and a restart, finds the old content or the new, never half of it.

A draft beside the file takes its place by a rename. One process writes a file at a time: drafts have one name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def drafted(file: Path) -> Iterator[Path]:
    """The path of a draft to be written in the block: it replaces `file` when the block ends well, else it is removed.

    The folder is made. Whatever dies, other processes see the old content or the new; where the machine does, only
    what was synced is sure to be there (`write_durably`).
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.new")
    try:
        yield draft
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_whole(file: Path, content: bytes) -> None:
    """Replace `file`; for what can be lost with the machine: it is told again, or of this run only."""
    with drafted(file) as draft:
        draft.write_bytes(content)


def write_durably(file: Path, content: bytes) -> None:
    """Replace `file`; content and name are on disk when this returns."""
    with drafted(file) as draft, draft.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on disk: without it, a file that was renamed may be gone with the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
