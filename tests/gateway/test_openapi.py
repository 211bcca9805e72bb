"""The description of the gateway's interface is what the gateway does."""

from __future__ import annotations

from services.gateway import app
from services.gateway.openapi import ENDPOINTS, FILE, PAGE, document, page, render
from services.proxy.dialects import DIALECTS
from tests.gateway.conftest import Running


def test_the_written_description_is_up_to_date() -> None:
    assert FILE.read_text() == render(), "run `python -m services.gateway.openapi`"
    assert PAGE.read_text() == page()


def test_every_route_is_described() -> None:
    described = {e.path for e in ENDPOINTS}
    for path in (*DIALECTS, *app._ROUTES):
        assert f"/v1{path}" in described or path in described, path
    for path in (*app._BELOW, *filter(None, app._PROBES)):
        assert any(each.removeprefix("/v1").startswith(path) for each in described), path


def test_every_reference_leads_somewhere() -> None:
    spec = document()
    known = {f"#/components/schemas/{name}" for name in spec["components"]["schemas"]}
    assert set(_references(spec)) <= known


async def test_the_gateway_serves_it_and_refuses_what_it_says_needs_a_key(running: Running) -> None:
    reply = await running.http.get(f"{running.url}/openapi.json")
    assert (await reply.json()) == document()
    for endpoint in ENDPOINTS:
        if endpoint.scope:
            path = endpoint.path.replace("{", "").replace("}", "")
            reply = await running.http.request(endpoint.method, f"{running.url}{path}", json={"model": "m"})
            assert reply.status == 401, endpoint.path


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for item in value.values() for ref in _references(item)]
    if isinstance(value, list):
        return [ref for item in value for ref in _references(item)]
    return []
