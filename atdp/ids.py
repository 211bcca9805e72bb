"""Identities: time-ordered random ids (UUIDv7, RFC 9562) and ids derived from content."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time

from atdp.randomness import random_bytes

_lock = threading.Lock()
_last_ms = 0
_counter = 0
_COUNTER_BITS = 12
_ID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def uuid7() -> str:
    """A UUIDv7; ids of one process sort in the order they were made.

    The 12 bits after the version are a counter within the millisecond (RFC 9562, method 1);
    when it overflows, the clock is borrowed one millisecond from the future.
    """
    global _last_ms, _counter
    with _lock:
        ms = time.time_ns() // 1_000_000
        if ms > _last_ms:
            _last_ms, _counter = ms, 0
        else:
            _counter += 1
            if _counter >> _COUNTER_BITS:
                _last_ms, _counter = _last_ms + 1, 0
        ms, counter = _last_ms, _counter
    tail = int.from_bytes(random_bytes(8), "big") & ((1 << 62) - 1)
    value = (ms << 80) | (0x7 << 76) | (counter << 64) | (0b10 << 62) | tail
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _unlock() -> None:
    """A thread that is not there in a child process may have held the lock when it was forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def new_id(prefix: str) -> str:
    """A fresh id that says what it names: `ev_0198…`, `tr_0198…`, `an_0198…`, `se_0198…`."""
    return f"{prefix}_{uuid7()}"


def is_id(text: str, prefix: str) -> bool:
    """Has it the form of an id that names such a thing, fresh or derived?"""
    return text.startswith(prefix + "_") and _ID.fullmatch(text, len(prefix) + 1) is not None


def derived_id(prefix: str, *parts: str) -> str:
    """The same id for the same parts: what makes a step that is reported twice one step."""
    return f"{prefix}_{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}"
