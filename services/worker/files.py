"""Writing a file so that a reader, or a restart, sees the old content or the new, never half of it."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(file: Path, content: bytes) -> None:
    """Replace `file`; durable when this returns."""
    fresh = file.with_suffix(file.suffix + ".new")
    with fresh.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.rename(file)
