"""Which gateways run: each leaves a file while it does, so that a flip can be proven on every one of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evoplane import files
from evoplane.settings import Settings


@contextmanager
def present(config: Settings) -> Iterator[None]:
    """This process's gateway runs inside the block."""
    file = _folder(config) / f"{os.getpid()}.json"
    files.write_whole(file, json.dumps({"pid": os.getpid(), "url": config.gateway_url}).encode())
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def gateways(config: Settings) -> list[str]:
    """Base URLs of the gateways that run on this machine; what a killed one left behind is removed."""
    urls = []
    for file in sorted(_folder(config).glob("*.json")):
        try:
            said = json.loads(file.read_text())
            os.kill(said["pid"], 0)
        except FileNotFoundError:  # it just stopped
            continue
        except (OSError, ValueError, KeyError):
            file.unlink(missing_ok=True)
        else:
            urls.append(str(said["url"]))
    return urls


def _folder(config: Settings) -> Path:
    return config.var / "gateways"
