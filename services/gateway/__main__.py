"""`python -m services.gateway`: gateway, router and data proxy in one process."""

from __future__ import annotations

import logging
import signal

import uvicorn

from evoplane.settings import settings
from services.gateway.app import create_app

_GRACE_S = 30
"""Requests in flight may take this long to end after a stop was asked for."""


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # uvicorn raises the signal that stopped it again when it is done: a stop that was asked for is no failure
    signal.signal(signal.SIGTERM, lambda *_: None)
    configuration = settings()
    uvicorn.run(
        create_app(configuration),
        host=configuration.gateway.host,
        port=configuration.gateway.port,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=configuration.gateway.max_body_bytes,
        interface="asgi3",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=_GRACE_S,
    )


if __name__ == "__main__":
    main()
