"""The console's pages. Everything is rendered here; scripts only move the focus and fetch the slow parts."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlencode, urlparse

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from dashboards.console import agent as agents
from dashboards.console import credit, finding, narrow, watching
from dashboards.console import trajectory as trajectories
from dashboards.console.access import LIFETIME_S, Logins, Refused, Viewer
from evoplane import __version__
from evoplane.settings import Settings
from registry import alerts, approvals, canaries, control, decisions, lineage, pointers, tenants
from registry.policies import Policies
from registry.tenants import RegistryError
from services.proxy.engines.base import StorageFailed
from services.proxy.reader import open_reader

COOKIE = "evoplane_console"
_HERE = Path(__file__).parent
_PAGE = 50
"""Trajectories on one page."""
_ALERTS = 30
"""Alerts shown with an agent, the newest."""
_MOST_FORM = 64_000
"""Bytes of a form."""
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}


class _LoginNeeded(Exception):
    pass


def create_app(config: Settings) -> FastAPI:
    """The console over a deployment's databases; it writes nothing but decisions on approvals."""
    logins = Logins()
    reader = open_reader(config)
    seen = agents.AgentReader(config, reader)
    templates = Jinja2Templates(directory=_HERE / "templates")
    templates.env.globals["version_of_console"] = __version__
    templates.env.filters["short"] = _short

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        reader.close()

    app = FastAPI(title="Evoplane console", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")

    @contextmanager
    def database() -> Iterator[sqlite3.Connection]:
        connection = control.connect(config.control_db)
        try:
            yield connection
        finally:
            connection.close()

    def viewer(request: Request) -> Viewer:
        with database() as connection:
            found = logins.viewer(connection, request.cookies.get(COOKIE))
        if found is None:
            raise _LoginNeeded
        return found

    logged_in = Depends(viewer)

    def page(request: Request, template: str, who: Viewer | None, status: int = 200, **context: Any) -> HTMLResponse:
        waiting = 0
        if who is not None:
            with database() as connection:
                waiting = len(_pending(connection, who))
        return templates.TemplateResponse(
            request, f"{template}.html", {"who": who, "waiting": waiting, **context}, status_code=status
        )

    @app.middleware("http")
    async def headers(request: Request, call_next: Callable[[Request], Any]) -> Response:
        response: Response = await call_next(request)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        if request.url.path.startswith("/static/"):
            response.headers["cache-control"] = "max-age=300"
        return response

    @app.exception_handler(_LoginNeeded)
    async def to_login(request: Request, _: Exception) -> Response:
        if request.headers.get("x-part"):
            return Response(status_code=401)
        return RedirectResponse(f"/login?to={request.url.path}" if request.method == "GET" else "/login", 303)

    @app.exception_handler(HTTPException)
    async def told(request: Request, error: HTTPException) -> Response:
        return page(request, "message", None, error.status_code, title=str(error.status_code), text=error.detail)

    @app.exception_handler(sqlite3.Error)
    @app.exception_handler(StorageFailed)
    async def unreadable(_: Request, error: Exception) -> Response:
        return PlainTextResponse(f"What is asked for can't be read now ({error}): try again.", 503)

    @app.exception_handler(RegistryError)
    async def refused(request: Request, error: RegistryError) -> Response:
        return page(request, "message", None, 404, title="That is not there", text=str(error))

    # -- in and out

    @app.get("/healthz")
    def alive() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/login", response_class=HTMLResponse)
    def login_page(request: Request, to: str = "/") -> Response:
        return page(request, "login", None, to=_local(to), problem="")

    @app.post("/login")
    async def login(request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise HTTPException(403, "Another site sent this form: log in here.")
        form = await _form(request)
        address = request.client.host if request.client else ""

        def enter() -> str:
            with database() as connection:
                return logins.enter(connection, form.get("key", "").strip(), address)

        try:
            token = await run_in_threadpool(enter)
        except Refused as error:
            return page(request, "login", None, 403, to=_local(form.get("to", "/")), problem=str(error))
        response = RedirectResponse(_local(form.get("to", "/")), 303)
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, token, max_age=int(LIFETIME_S), httponly=True, samesite="strict", secure=secure)
        return response

    @app.post("/logout")
    async def logout(request: Request, who: Viewer = logged_in) -> Response:
        _same_login(who, await _form(request))
        logins.leave(request.cookies.get(COOKIE, ""))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE)
        return response

    def _sees_all(who: Viewer) -> bool:
        """What was decided about several tenants quotes them: it is for whoever may see all of them."""
        return set(reader.tenants()) <= who.tenants

    def _reads_evidence(who: Viewer, asked: approvals.Approval) -> bool:
        """Nobody approves what they may not read: an approver sees the whole change."""
        return _sees_all(who) or (who.may_approve and who.name in asked.approvers)

    def _readable(who: Viewer, asked: approvals.Approval) -> approvals.Approval:
        return asked if _reads_evidence(who, asked) else narrow.approval(asked)

    # -- agents

    @app.get("/", response_class=HTMLResponse)
    def home(request: Request, who: Viewer = logged_in) -> Response:
        with database() as connection:
            rows = [agents.overview(connection, name, _sees_all(who)) for name in sorted(who.agents)]
        if len(rows) == 1:
            return RedirectResponse(f"/agents/{rows[0].agent.name}", 303)
        return page(request, "home", who, agents=rows)

    @app.get("/agents/{name}", response_class=HTMLResponse)
    def agent_page(request: Request, name: str, who: Viewer = logged_in) -> Response:
        _may_see(name in who.agents)
        with database() as connection:
            found = agents.overview(connection, name, _sees_all(who))
        newest = _newest(who, name, None, None)
        urls = {"mlflow": config.mlflow_url, "prefect": config.prefect_api_url.removesuffix("/api"),
                "evidently": config.evidently_url}  # fmt: skip
        return page(request, "agent", who, found=found, newest=newest, urls=urls, whole=_sees_all(who))

    @app.get("/agents/{name}/parts/quality", response_class=HTMLResponse)
    def quality_part(request: Request, name: str, who: Viewer = logged_in) -> Response:
        _may_see(name in who.agents)
        with database() as connection:
            route = pointers.all_routes(connection).get(name)
        found = seen.quality(name, who.tenants, route.champion if route else None)
        return page(request, "quality", who, name=name, found=found)

    @app.get("/agents/{name}/parts/canary", response_class=HTMLResponse)
    def canary_part(request: Request, name: str, who: Viewer = logged_in) -> Response:
        _may_see(name in who.agents)
        with database() as connection:
            running = canaries.running(connection, name)
        found = seen.canary(running, who.tenants) if running is not None else None
        return page(request, "canary", who, name=name, found=found)

    @app.get("/agents/{name}/parts/watching", response_class=HTMLResponse)
    def watching_part(request: Request, name: str, who: Viewer = logged_in) -> Response:
        _may_see(name in who.agents)
        with database() as connection:
            raised = alerts.list_alerts(connection, name, limit=_ALERTS)
        found = watching.view(config, name, who.tenants, list(reader.tenants()), raised)
        return page(request, "watching", who, name=name, found=found)

    @app.get("/agents/{name}/versions/{label}", response_class=HTMLResponse)
    def version_page(request: Request, name: str, label: str, who: Viewer = logged_in) -> Response:
        _may_see(name in who.agents)
        whole = _sees_all(who)
        with database() as connection:
            found = agents.version(connection, name, label, whole)
            chain = lineage.lineage(connection, name, label, whole=whole)
            decided = found.version.lineage.get("decision")
            decision = decisions.get(connection, decided) if decided else None
        if decision is not None and not whole:
            decision = narrow.decision(decision)
        return page(request, "version", who, name=name, found=found, chain=chain, decision=decision, whole=whole)

    # -- trajectories

    def _newest(who: Viewer, agent: str, tenant: str | None, before: str | None) -> list[Any]:
        wanted = [t for t in reader.tenants() if t in who.tenants and tenant in (None, t)]
        rows = [
            row for t in wanted for row in reader.trajectories(t, agent=agent, limit=_PAGE, before=before)
        ]  # fmt: skip
        return sorted(rows, key=lambda row: row.opened_at, reverse=True)[:_PAGE]

    @app.get("/agents/{name}/trajectories", response_class=HTMLResponse)
    def trajectories_page(
        request: Request, name: str, who: Viewer = logged_in, tenant: str | None = None, before: str | None = None
    ) -> Response:
        _may_see(name in who.agents and tenant in (None, *who.tenants))
        only = tenant or (sorted(who.tenants)[0] if len(who.tenants) == 1 else None)
        rows = _newest(who, name, only, before if only else None)
        more = rows[-1].trajectory_id if only and len(rows) == _PAGE else None
        return page(
            request, "trajectories", who, name=name, rows=rows, tenant=only, tenants=sorted(who.tenants), more=more
        )

    @app.get("/find", response_class=HTMLResponse)
    def find(request: Request, who: Viewer = logged_in, q: str = "") -> Response:
        """By the id of a trajectory, an event, a session or an annotation."""
        wanted = q.strip()
        found = finding.place(reader, who, wanted)
        if found is not None:
            return RedirectResponse(_page_of(found), 303)
        rows = finding.in_session(reader, who, wanted)
        if len(rows) == 1:
            return RedirectResponse(f"/trajectories/{rows[0].tenant}/{rows[0].trajectory_id}", 303)
        return page(request, "found", who, rows=rows, wanted=wanted)

    @app.get("/trajectories/{tenant}/{id}", response_class=HTMLResponse)
    def trajectory_page(
        request: Request, tenant: str, id: str, who: Viewer = logged_in, step: int = 1, at: str = ""
    ) -> Response:
        """The steps from number `step` on, or the page that the record `at` is on."""
        _may_see(finding.trajectory(reader, who, tenant, id) is not None)
        found = trajectories.view(reader, tenant, id, step, at)
        _may_see(found is not None)
        return page(request, "trajectory", who, found=found)

    @app.get("/trajectories/{tenant}/{id}/parts/credit", response_class=HTMLResponse)
    def credit_part(request: Request, tenant: str, id: str, who: Viewer = logged_in) -> Response:
        _may_see(finding.trajectory(reader, who, tenant, id) is not None)
        return page(request, "credit", who, found=credit.view(config, reader, tenant, id))

    @app.get("/events/{id}/why", response_class=HTMLResponse)
    def why_page(request: Request, id: str, who: Viewer = logged_in) -> Response:
        """Why did the agent say this? The command line's own answer."""
        place = finding.place(reader, who, id)
        if place is None:
            raise _hidden()
        with database() as connection:
            found = lineage.explain(connection, reader, id, tenant=place.tenant, whole=_sees_all(who))
        _may_see(found.answer.agent in who.agents)
        return page(request, "why", who, found=found, tenant=place.tenant)

    # -- approvals

    @app.get("/approvals", response_class=HTMLResponse)
    def inbox(request: Request, who: Viewer = logged_in) -> Response:
        with database() as connection:
            pending = _pending(connection, who)
            known = [a for a in approvals.list_approvals(connection) if a.agent in who.agents and a.status != "pending"]
        shown = [_readable(who, a) for a in reversed(known[-30:])]
        return page(request, "approvals", who, pending=[_readable(who, a) for a in pending], decided=shown)

    @app.get("/approvals/{id}", response_class=HTMLResponse)
    def approval_page(request: Request, id: str, who: Viewer = logged_in, said: str = "") -> Response:
        with database() as connection:
            found = _approval(connection, who, id)
            approvers = tenants.get_agent(connection, found.agent).approvers
        return page(
            request, "approval", who, found=_readable(who, found), approvers=approvers, said=said, problem="",
            whole=_reads_evidence(who, found),
        )  # fmt: skip

    @app.post("/approvals/{id}")
    async def decide(request: Request, id: str, who: Viewer = logged_in) -> Response:
        form = await _form(request)
        _same_login(who, form)
        if form.get("decision") not in ("approved", "rejected"):
            raise HTTPException(400, "Say approved or rejected.")
        decision = cast(approvals.Decision, form["decision"])

        def write() -> tuple[approvals.Approval, bool]:
            with database() as connection:
                _approval(connection, who, id)
                if not who.may_approve:
                    raise RegistryError("this key may not approve")
                rules = Policies.load(config.policies_dir)
                return approvals.decide(
                    connection, id, decision, who.signer, "console", form.get("reason", ""), policies=rules
                )

        try:
            found, changed = await run_in_threadpool(write)
        except RegistryError as error:
            with database() as connection:
                found = _approval(connection, who, id)
            return page(
                request, "approval", who, 409, found=_readable(who, found), approvers=found.approvers, said="",
                problem=str(error), whole=_reads_evidence(who, found),
            )  # fmt: skip
        said = "recorded" if changed else "already"
        return RedirectResponse(f"/approvals/{found.id}?said={said}", 303)

    return app


def _pending(connection: sqlite3.Connection, who: Viewer) -> list[approvals.Approval]:
    asked = [a for a in approvals.list_approvals(connection) if a.status == "pending" and a.agent in who.agents]
    return [now for a in asked if (now := approvals.get(connection, a.id)).status == "pending"]


def _may_see(yes: bool) -> None:
    """What somebody may not see does not exist for them."""
    if not yes:
        raise _hidden()


def _hidden() -> HTTPException:
    return HTTPException(404, "There is nothing here, or not for you.")


def _approval(connection: sqlite3.Connection, who: Viewer, id: str) -> approvals.Approval:
    """An approval that they may see; for any other the answer is that of one that never was."""
    with suppress(RegistryError):
        found = approvals.get(connection, id)
        if found.agent in who.agents:
            return found
    raise _hidden()


def _same_login(who: Viewer, form: dict[str, str]) -> None:
    if form.get("csrf") != who.csrf:
        raise HTTPException(403, "This form is not from this login: go back and try again.")


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM:
            raise HTTPException(413, "That is too much.")
    return {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def _local(to: str) -> str:
    """A path of ours: a login must not lead anywhere else."""
    try:
        parsed = urlparse(to)
    except ValueError:  # a bracket without its other half
        return "/"
    fine = to.startswith("/") and not to.startswith(("//", "/\\")) and not parsed.netloc and not parsed.scheme
    return to if fine else "/"


def _page_of(place: finding.Place) -> str:
    """The page of a trajectory; that of a record in it is the one that it is on, at the record."""
    page, id = f"/trajectories/{place.tenant}/{place.trajectory_id}", place.record_id
    return page if id is None else f"{page}?{urlencode({'at': id})}#{id}"


def _short(text: str, size: int = 14) -> str:
    return text if len(text) <= size else f"{text[:size]}…"
