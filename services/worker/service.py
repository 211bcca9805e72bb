"""The worker's service interface: which policies are served, and adding or removing one.

Listens on localhost only; agents never talk to it, the control plane does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from evoplane.settings import Settings
from services.worker.policies import PolicyError
from services.worker.serving.base_weights import BaseWeights, Kept
from services.worker.serving.policies import Policies, Policy, PolicyConflict, Probe, ProbeMismatch
from services.worker.serving.updates import Update, Updates
from services.worker.serving.vllm import VllmError, VllmServer
from services.worker.serving.weights import WeightsError

TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class ProbeBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    prompt_token_ids: TokenIds
    completion_token_ids: TokenIds
    logprobs: list[FiniteFloat]

    @model_validator(mode="after")
    def one_logprob_each(self) -> ProbeBody:
        if len(self.logprobs) != len(self.completion_token_ids):
            raise ValueError("logprobs and completion_token_ids must have the same length")
        return self


class PolicyBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    path: str
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    probe: ProbeBody | None = None


class WeightsBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    path: str
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    probe: ProbeBody | None = None


def create_app(settings: Settings) -> FastAPI:
    """The service and the vLLM server it owns."""
    worker, updates = settings.worker, Updates()
    policies = Policies(settings.var / "worker" / "policies.json", worker.probe_tolerance, updates)
    base = BaseWeights(
        settings.var / "worker" / "weights.json",
        settings.model_dir.absolute(),
        settings.model.name,
        worker.probe_tolerance,
        updates,
    )

    async def restore() -> None:
        await base.restore(server)
        await policies.restore(server)

    server = VllmServer(settings, restore)
    server.weights = base.directory

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        server.start()
        yield
        await server.close()

    app = FastAPI(title="Evoplane worker", lifespan=lifespan)

    @app.get("/healthz")
    async def healthz() -> Response:
        ok = await server.healthy()
        body = {
            "status": "ok" if ok else server.state,
            "vllm": {"pid": server.pid, "restarts": server.restarts, "log": str(server.log)},
            "failed_policies": policies.failed,
        }
        return JSONResponse(body, status_code=200 if ok else 503)

    @app.get("/v1/policies")
    async def list_policies() -> dict[str, Any]:
        served = [msgspec.to_builtins(policy) for policy in policies.served()]
        return {"base": settings.model.name, "weights": base.name, "policies": served}

    @app.get("/v1/updates")
    async def list_updates() -> dict[str, Any]:
        return {"updates": [_update(update) for update in updates.listed()]}

    @app.post("/v1/policies")
    async def add_policy(body: PolicyBody) -> Response:
        if body.name == settings.model.name:
            return _error(409, f"{body.name} is the base model's name")
        probe = Probe(**body.probe.model_dump()) if body.probe else None
        policy = Policy(name=body.name, path=body.path, digest=body.digest, probe=probe)
        if server.state != "serving":
            return _error(503, f"vLLM is {server.state}; try again when /healthz is 200")
        try:
            update = await policies.add(server, policy)
        except _REFUSALS as error:
            return _refused(error)
        return JSONResponse(_update(update))

    @app.delete("/v1/policies/{name}")
    async def delete_policy(name: str, drain_s: float | None = None) -> Response:
        try:
            removed = await policies.remove(server, name, worker.drain_s if drain_s is None else drain_s)
        except VllmError as error:
            return _error(502, str(error))
        if removed is None:
            return _error(404, f"no policy {name} is served")
        return JSONResponse({"name": name, "removed": True, **removed})

    @app.put("/v1/weights")
    async def change_weights(body: WeightsBody) -> Response:
        probe = Probe(**body.probe.model_dump()) if body.probe else None
        return await _change(Kept(name=body.name, path=body.path, digest=body.digest), probe)

    @app.delete("/v1/weights")
    async def former_weights() -> Response:
        """Back to the configured model."""
        return await _change(None, None)

    async def _change(wanted: Kept | None, probe: Probe | None) -> Response:
        if not worker.full_weights:
            return _error(403, "in-place updates of the base weights are off: see worker.full_weights")
        if server.state != "serving":
            return _error(503, f"vLLM is {server.state}; try again when /healthz is 200")
        try:
            update = await base.change(server, policies, wanted, probe, worker.drain_s)
        except _REFUSALS as error:
            return _refused(error)
        return JSONResponse(_update(update))

    return app


_REFUSALS = (PolicyError, WeightsError, PolicyConflict, ProbeMismatch, VllmError)


def _refused(error: Exception) -> JSONResponse:
    """Why nothing was changed."""
    match error:
        case PolicyError() | WeightsError():
            return _error(404, str(error))
        case ProbeMismatch():
            return _error(409, str(error), **error.numbers)
        case VllmError() if error.status >= 500:
            return _error(502, str(error))
        case VllmError():
            return _error(400, str(error))
        case _:
            return _error(409, str(error))


def _update(update: Update) -> dict[str, Any]:
    return {name: getattr(update, name) for name in update.__struct_fields__ if name != "since"}


def _error(status: int, message: str, **numbers: Any) -> JSONResponse:
    return JSONResponse({"error": {"message": message, **numbers}}, status_code=status)
