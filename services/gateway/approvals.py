"""`POST /v1/approvals/mlflow`: MLflow's webhook, when a person tags a model version."""

from __future__ import annotations

import asyncio

from services.gateway.asgi import Request, Send, respond_json
from services.gateway.core import Gateway
from services.gateway.errors import ApiError

_MAX_BODY = 65_536


async def mlflow_approval(gateway: Gateway, request: Request, send: Send) -> None:
    """202 with what came of it; nothing did when the tag is another, or nothing waits. 401 without its signature."""
    from registry import mlflow_approvals  # policies and Prefect's client: not on the path of requests

    body = await request.body(_MAX_BODY)
    try:
        outcome = await asyncio.to_thread(mlflow_approvals.receive, gateway.settings, request.headers, body)
    except mlflow_approvals.BadSignature as error:
        raise ApiError(401, str(error), type="authentication_error", code="bad_signature") from error
    await respond_json(send, 202, {"outcome": outcome})
