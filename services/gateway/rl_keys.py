"""The keys of reinforcement-learning sessions, in memory; the control database has them for good."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from registry import control, rl_sessions
from registry.rl_sessions import RlSession
from registry.tenants import Key, key_digest

_SCOPES = frozenset({"infer", "feedback"})
"""All that a session's key may do, if the key that began the session may."""


class RlKeys:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_digest: dict[str, RlSession] = {}

    def start(self) -> None:
        """Read what was given out before."""
        with self.connection() as connection:
            self._by_digest = {session.digest: session for session in rl_sessions.load(connection)}

    def know(self, session: RlSession) -> None:
        """From now on its key speaks for this session."""
        self._by_digest[session.digest] = session

    def speaker(self, secret: str, keys: Mapping[str, Key]) -> tuple[Key, str] | None:
        """What a session's key may do, and for which session; None when it is none, or its parent was revoked."""
        if not secret.startswith(rl_sessions.SESSION_KEY_PREFIX):
            return None
        session = self._by_digest.get(key_digest(secret))
        if session is None:
            return None
        parent = next((key for key in keys.values() if key.id == session.key_id), None)
        return None if parent is None else (replace(parent, scopes=parent.scopes & _SCOPES), session.session_id)

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """The control database, for one piece of work."""
        connection = control.connect(self._path, must_exist=True)
        try:
            rl_sessions.prepare(connection)
            yield connection
        finally:
            connection.close()
