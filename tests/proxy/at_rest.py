"""What lies on the disk, and what it says once it is unpacked: a search for a text must not miss what is packed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from services.proxy.packing import unpack, unpack_content


def every_byte(root: Path) -> bytes:
    """All files under a directory, one after the other, and all packed rows of the logs among them, unpacked."""
    files = [path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()]
    rows = [row for path in sorted(root.rglob("*.sqlite")) for row in _unpacked(path)]
    return b"\0".join([*files, *rows])


def _unpacked(path: Path) -> list[bytes]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type='table'")}
        if not {"records", "parts"} <= tables:
            return []
        bodies = [unpack(row[0]) for row in connection.execute("SELECT body FROM records")]
        contents = [unpack_content(row[0]) for row in connection.execute("SELECT data FROM parts WHERE packed=1")]
        return bodies + contents
    finally:
        connection.close()
