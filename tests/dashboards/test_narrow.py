"""A viewer of one tenant reads no name and no figure of another, wherever the control plane wrote one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from dashboards.console.app import create_app
from registry import approvals, audit, candidates, control, decisions, pointers, roles
from registry.manifest import AgentVersion
from tests.dashboards.deployment import Deployment, made
from tests.dashboards.test_console import login

WRITTEN = ("0.2112", "0.3331", "0.4443", "0.5554", "0.6665", "0.7776", "0.8887", "0.9998", "tenant other")
PAGES = ("/agents/support", "/agents/support/versions/3", "/agents/support/parts/canary", "/approvals",
         "/events/ev_acme_0/why")  # fmt: skip


@pytest.fixture
def quoting(tmp_path: Path) -> Deployment:
    """Every text the control plane writes names the other tenant, each with a figure of its own."""
    found = made(tmp_path, 1)
    connection = control.connect(found.config.control_db)
    ranking = [{"name": "memory-1", "surface": "memory", "score": 0.2112, "why": "tenant other 0.3331", "chosen": True}]
    record = {"chosen": "memory-1", "reason": "success of tenant other 0.4443", "data_gate": "passed",
              "ranking": ranking, "candidates": {}}  # fmt: skip
    decisions.put(connection, "dec_1", "support", record)
    first = pointers.versions(connection, "support")["1"]
    version = AgentVersion(
        agent="support", version="3", digest=first.digest, manifest=first.manifest, parent="1", intervention="memory",
        description="tenant other asks 0.5554", lineage={"decision": "dec_1", "replay_improvement": "0.6665"},
    )  # fmt: skip
    pointers.put_version(connection, version)
    for state in ("accepted", "canary", "approval"):
        candidates.move(connection, "support", "3", state, "tenant other 0.7776")  # type: ignore[arg-type]
    audit.append(connection, "deliver", "canary.pass", "support", {"version": "3", "reason": "tenant other 0.8887"})
    evidence = {"change": "tenant other 0.9998", "intervention": "memory", "why": ["tenant other 0.3331"]}
    asked = approvals.request(connection, "support", "3", evidence, 3600, "run-3")
    candidates.move(connection, "support", "3", "promoted")
    pointers.set_champion(connection, "support", "3", "tenant other 0.7776", "test")
    approvals.decide(connection, asked.id, "approved", "dana", "cli", "tenant other 0.8887")
    pointers.rollback(connection, "support", "1", "tenant other 0.7776", "test")
    pointers.start_canary(connection, "support", "2", 0.5, tenants=("acme", "other"))
    roles.give(connection, "zoe", "operator", None, "test")
    return Deployment(found.config, found.keys, asked.id)


def pages(found: Deployment, who: str) -> str:
    with TestClient(create_app(found.config), follow_redirects=False) as console:
        login(console, found.keys[who])
        return "\n".join(console.get(page).text for page in (*PAGES, f"/approvals/{found.approval}"))


def test_a_viewer_of_one_tenant_reads_nothing_of_another(quoting: Deployment) -> None:
    text = pages(quoting, "ravi")
    assert [word for word in WRITTEN if word in text] == []
    assert "other" not in text.replace("another", "").replace("others", "")
    assert "memory-1" in text and "approved by dana" in text and "rollback" in text  # what happened is there


def test_a_viewer_of_all_tenants_reads_all_of_it(quoting: Deployment) -> None:
    text = pages(quoting, "zoe")
    assert [word for word in WRITTEN if word not in text.replace("+0.211", "0.2112")] == []


def test_an_approver_reads_what_they_decide_about_and_no_more(quoting: Deployment) -> None:
    with TestClient(create_app(quoting.config), follow_redirects=False) as console:
        login(console, quoting.keys["dana"])
        assert "tenant other 0.9998" in console.get(f"/approvals/{quoting.approval}").text
        assert "tenant other" not in console.get("/agents/support").text
