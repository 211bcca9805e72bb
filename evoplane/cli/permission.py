"""May the account that runs this command do it?"""

from __future__ import annotations

import getpass
import sqlite3
from typing import Literal

from evoplane.settings import Settings
from registry import policies


def require(
    config: Settings, connection: sqlite3.Connection, action: Literal["promote", "rollback"], agent: str
) -> None:
    """Raises `Forbidden` when the policies do not let this account do it."""
    who = policies.principal(connection, getpass.getuser(), local=True)
    policies.require(connection, policies.Policies.load(config.policies_dir), who, action, f"Agent::{agent}")
