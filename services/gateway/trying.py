"""What is wrong with the settings that only trying shows: told before anything is started, in one line."""

from __future__ import annotations

import socket
from contextlib import closing

from evoplane.settings import Settings, SettingsError
from registry import control, keyring


def try_out(settings: Settings) -> None:
    """Raises `SettingsError` when the folder can't be written to, the host has no address here, or the master key is
    not the one that is needed."""
    try:
        settings.var.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"paths.var: {settings.var} can't be made: {error.strerror}") from error
    try:
        socket.getaddrinfo(settings.gateway.host, settings.gateway.port, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"gateway.host: {settings.gateway.host} can't be resolved") from error
    master = keyring.master_key(settings.keys_dir)
    with closing(control.connect(settings.control_db)) as connection:
        keyring.load(connection, master)
