"""`evoplane feedback`: tell what came of an answer, as an application would."""

from __future__ import annotations

import os
from typing import Annotated

import httpx
import typer

from evoplane.cli.output import Json, show
from evoplane.settings import settings
from registry.tenants import RegistryError

_KEY = "EVOPLANE_KEY"


def feedback(
    name: Annotated[str, typer.Argument(help="What is said: resolved, user_correction, …")],
    value: Annotated[float, typer.Argument(help="How good it was; 0 or 1 for resolved.")],
    event: Annotated[str | None, typer.Option(help="The answer (header x-evoplane-event-id).")] = None,
    session: Annotated[str | None, typer.Option(help="Or the whole session.")] = None,
    explanation: Annotated[str, typer.Option(help="The words that go with it.")] = "",
    json: Json = False,
) -> None:
    """Post feedback about an answer or a session. The key is read from EVOPLANE_KEY.

    Example: EVOPLANE_KEY=evo_… evoplane feedback resolved 1 --session se_0197…
    """
    if not (event or session):
        raise RegistryError("say what the feedback is about: --event or --session")
    if not (key := os.environ.get(_KEY)):
        raise RegistryError(f"set {_KEY} to a key of the tenant")
    body = {"name": name, "value": value, "event_id": event, "session_id": session, "explanation": explanation}
    try:
        response = httpx.post(
            f"{settings().gateway_url}/v1/feedback",
            json={k: v for k, v in body.items() if v not in (None, "")},
            headers={"authorization": f"Bearer {key}"},
        )
    except httpx.HTTPError as error:
        raise RegistryError(f"the gateway does not answer at {settings().gateway_url}: {error}") from error
    if response.is_error:
        raise RegistryError(f"the gateway refused: {_message(response)}")
    show(response.json(), json)


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.reason_phrase} {response.text}".rstrip()
