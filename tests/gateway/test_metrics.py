"""What Prometheus reads is well-formed, and every alert and panel asks for something that is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from services.gateway.metrics import Metrics
from tests.gateway.conftest import Running, user

DEPLOY = Path(__file__).parents[2] / "deploy"
_NAME = re.compile(r"\bevoplane_[a-z_]+\b")


async def scraped(running: Running) -> str:
    return await (await running.http.get(f"{running.url}/metrics")).text()


async def test_a_call_is_counted_by_agent_version_role_and_status(running: Running) -> None:
    await running.chat([user("hi")])
    families = {family.name: family for family in text_string_to_metric_families(await scraped(running))}
    calls = [s for s in families["evoplane_model_calls"].samples if s.labels["status"] == "ok"]
    assert [(s.labels["version"], s.labels["role"], s.value) for s in calls] == [("1", "champion", 1.0)]
    buckets = [s.value for s in families["evoplane_overhead_seconds"].samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] == 1.0


async def test_every_alert_and_panel_asks_for_a_metric_that_is_there(running: Running) -> None:
    await running.chat([user("hi")])
    told = set(_NAME.findall(await scraped(running)))
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "grafana" / "evoplane.json").read_text())["panels"]
    asked = [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(asked) > 20
    for expression in asked:
        assert set(_NAME.findall(expression)) <= told, expression
    assert all(rule["annotations"]["do"] for rule in rules)


def test_what_providers_did_not_count_is_not_counted_as_nothing() -> None:
    metrics = Metrics()
    metrics.called("a", "1", "champion", "ok", None)
    metrics.called("a", "1", "champion", "ok", {"input_tokens": 3, "output_tokens": None})
    assert metrics.tokens == {("a", "1", "input"): 3}
