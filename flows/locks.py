"""One process at a time, by a locked file: the kernel lets go when the holder dies, however it dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PAUSE_S = 0.5


class Busy(Exception):
    """Somebody else held the lock for as long as one was willing to wait."""


@contextmanager
def exclusive(file: Path, wait_s: float) -> Iterator[None]:
    """Hold the lock inside the block; raises `Busy` when it is not free within `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    with file.open("w") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise Busy(f"locked for more than {wait_s:.0f} s") from error
            time.sleep(_PAUSE_S)
        yield
