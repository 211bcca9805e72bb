"""What SDKs ask for beside conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.audit import Stored
from tests.contract.conftest import Served, python, run_client
from tests.contract.model import EMBEDDING, ScriptedModel

pytestmark = pytest.mark.stack


def test_embeddings_and_token_counts_are_the_providers_and_models_the_keys_own(
    model: ScriptedModel, served: Served, tmp_path: Path
) -> None:
    interpreter, key = python(".venv-clients"), served.key("endpoints")
    model.reset()
    direct = run_client(interpreter, "endpoints.py", model.url, key, tmp_path / "direct")
    beside = [each for each in model.beside if each[0].startswith("POST")]
    model.reset()
    through = run_client(interpreter, "endpoints.py", served.url, key, tmp_path / "through")
    assert [each for each in model.beside if each[0].startswith("POST")] == beside
    for name in ("embeddings", "count_tokens"):
        assert through[name] == direct[name]
        assert "raised" not in direct[name]
    assert "smollm2-135m" in through["openai_models"]
    assert through["openai_models"] == through["anthropic_models"]
    stored = Stored.read(served.reader, "endpoints")
    (event,) = stored.events("x.embedding")
    assert event["a"]["arguments"] == {"input": ["one", "two"]}
    assert [item["embedding"] for item in event["y"]["result"]] == [EMBEDDING] * 2
    assert event["ext"]["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
