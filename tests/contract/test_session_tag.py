"""A tag in the base URL (`/s/<tag>/v1`) marks a session for clients that can set nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.audit import Stored
from tests.contract.conftest import Served, python, run_client
from tests.contract.model import ScriptedModel

pytestmark = pytest.mark.stack

_CLIENTS = {
    "openai_sdk.py": ["chat", "responses_stream"],
    "anthropic_sdk.py": ["messages_plain", "messages_stream"],
    "claude_code.py": ["claude_429"],
}


@pytest.mark.parametrize("script", _CLIENTS)
def test_a_tag_in_the_base_url_is_the_session_of_whatever_is_said_there(
    model: ScriptedModel, served: Served, tmp_path: Path, script: str
) -> None:
    tenant = script.removesuffix(".py").replace("_", "-") + "-tagged"
    interpreter, key = python(".venv-clients"), served.key(tenant)
    model.reset()
    got = run_client(interpreter, script, f"{served.url}/s/case-7", key, tmp_path / "client", *_CLIENTS[script])
    assert all("raised" not in result for result in got.values())
    stored = Stored.read(served.reader, tenant)
    assert len(stored.calls()) == len(model.exchanges)
    assert [records[0]["session_id"] for records in stored.trajectories.values()] == ["tag:case-7"]
