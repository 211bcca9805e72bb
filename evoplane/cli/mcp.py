"""`evoplane mcp`: tool servers that speak over standard streams."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(name="mcp", no_args_is_help=True, help="Tool servers (Model Context Protocol).")


@app.callback()
def _group() -> None:
    """Tool servers (Model Context Protocol)."""


@app.command("wrap", context_settings={"ignore_unknown_options": True})
def wrap(
    command: Annotated[list[str], typer.Argument(help="The server's command and its arguments, after `--`.")],
    server: Annotated[str, typer.Option(help="The name its calls are recorded under.")],
) -> None:
    """Run a stdio tool server and report its calls; what passes between it and its client stays unchanged.

    Reads EVOPLANE_URL, EVOPLANE_KEY and, if the session is known, EVOPLANE_SESSION_ID.

    Example: evoplane mcp wrap --server files -- npx -y @modelcontextprotocol/server-filesystem /data
    """
    from evoplane.cli.mcp_stdio import wrap as run

    raise typer.Exit(run(server, command))
