"""`python -m dashboards.console`: the operator console, on loopback unless told otherwise."""

from __future__ import annotations

import uvicorn

from dashboards.console.app import create_app
from evoplane.settings import settings


def main() -> None:
    config = settings()
    uvicorn.run(
        create_app(config), host=config.console.host, port=config.console.port, log_level="warning", access_log=False
    )


if __name__ == "__main__":
    main()
