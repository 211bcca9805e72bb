"""Files that a command is given to read."""

from __future__ import annotations

from pathlib import Path

from registry.tenants import RegistryError


def require_regular(file: Path) -> None:
    """Raises `RegistryError` for what is no file on a disk: a pipe may never end, and nothing is read twice from it."""
    if file.exists() and not file.is_file():
        raise RegistryError(f"{file} is no regular file: write what it gives into one first")
