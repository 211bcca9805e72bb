"""`python -m services.gateway`: gateway, router and data proxy; a process beside it writes the records."""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import sys

import uvicorn

from evoplane.settings import SettingsError, ending_when_wrong, settings
from registry.presence import present
from services.gateway.app import create_app
from services.gateway.trying import try_out

_GRACE_S = 30
"""Requests in flight may take this long to end after a stop was asked for."""

_KEEP_ALIVE_S = 75
"""An idle connection is left to the client to close: clients' pools keep theirs for 5 to 15 s, load balancers for 60.
With uvicorn's own 5 s the gateway closed some at the moment a client sent on them, and a POST is not sent twice."""

_COLLECTOR = (5_000, 2, 250)
"""`gc.set_threshold`. Sessions live long and are no garbage, yet every full collection walks all of them: 0.1 s at
12,000 sessions, a fifth of all computing time with the interpreter's own thresholds. A request leaves no cycles behind:
a young collection, 1 to 3 ms once in 140 requests, mostly moves on what stays; a full one comes once in 100,000."""


_SWITCH_S = 0.002
"""`sys.setswitchinterval`. Where a thread writes the records (`store.writer`), one request in a hundred would wait the
interpreter's 5 ms for it (`evoplane bench gateway`, p99 at c=1); large requests are read on threads, too."""


_USAGE = """\
example:
  EVOPLANE_CONFIG=my/evoplane.toml EVOPLANE_GATEWAY__PORT=9000 python -m services.gateway
"""


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m services.gateway",
        description="The gateway alone, until told to stop. It takes no arguments: see `[gateway]` in evoplane.toml.",
        epilog=_USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # uvicorn, which listens for it later, raises the signal that stopped it again when it is done: a stop that was
    # asked for is no failure, neither then nor now
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ending_when_wrong():
        configuration = settings()
        try_out(configuration)
        wrong: list[SettingsError] = []
        app = create_app(configuration, on_wrong=wrong.append)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR)
    sys.setswitchinterval(_SWITCH_S)
    with ending_when_wrong(), present(configuration):
        try:
            uvicorn.run(
                app,
                host=configuration.gateway.host,
                port=configuration.gateway.port,
                loop="uvloop",
                http="httptools",
                ws="websockets-sansio",
                ws_max_size=configuration.gateway.max_body_bytes,
                interface="asgi3",
                lifespan="on",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                date_header=True,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_GRACE_S,
            )
        except SystemExit:  # uvicorn's own, when what the application says is that it can't start
            if wrong:
                raise wrong[0] from None
            raise


if __name__ == "__main__":
    main()
