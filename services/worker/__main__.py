"""`python -m services.worker`: the worker service and its vLLM server, until told to stop."""

from __future__ import annotations

import argparse

import uvicorn

from evoplane.settings import ending_when_wrong, settings
from services.worker.service import create_app

if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m services.worker",
        description="The worker and its vLLM server. It takes no arguments: see `[worker]` in evoplane.toml.",
    ).parse_args()
    with ending_when_wrong():
        config = settings()
    uvicorn.run(create_app(config), host="127.0.0.1", port=config.worker.port, log_level="info")
