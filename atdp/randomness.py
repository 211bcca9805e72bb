"""Random bytes of the operating system, asked for in bulk.

A call to `os.urandom` for a few bytes costs more than what they are for, and lets go of Python's lock: an event loop
may get it back only milliseconds later. Every byte is given out once.
"""

from __future__ import annotations

import os
import threading

_AT_ONCE = 4096
_lock = threading.Lock()
_ready = b""
_at = 0


def random_bytes(count: int) -> bytes:
    """So many bytes that nobody can foretell, for keys, nonces and ids. For any thread."""
    global _ready, _at
    with _lock:
        if len(_ready) - _at < count:
            _ready, _at = os.urandom(max(_AT_ONCE, count)), 0
        _at += count
        return _ready[_at - count : _at]


def _forget() -> None:
    """A child process must not give out what its parent will."""
    global _ready, _at, _lock
    _ready, _at, _lock = b"", 0, threading.Lock()


os.register_at_fork(after_in_child=_forget)
