"""`python -m dashboards.console`: the operator console, on loopback unless told otherwise."""

from __future__ import annotations

import uvicorn

from dashboards.console.app import create_app
from evoplane.settings import ending_when_wrong, settings


def main() -> None:
    with ending_when_wrong():
        config = settings()
        app = create_app(config)
    uvicorn.run(app, host=config.console.host, port=config.console.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
