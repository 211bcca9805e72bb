"""A judge's verdicts through a real gateway into the log: told once, with the judge's name, never for optimising."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from dashboards.reading import read_cases
from evaluators.rewards import declare
from tests.gateway.conftest import Running, user


async def test_answers_are_judged_once_and_count_only_where_the_rule_says_so(running: Running) -> None:
    from flows.judging import judge_agent  # prefect is imported with it

    asked: list[str] = []

    async def ask(messages: list[dict[str, str]], seed: int) -> str:
        asked.append(messages[-1]["content"])
        return json.dumps({"verdict": "fail", "reason": "made up", "violated": ["true"]})

    response = await running.chat([user("How long is the warranty?")])
    judged = {"judge": running.settings.judge.model_copy(update={"model": "judge-1", "votes": 2})}
    host, port = running.url.removeprefix("http://").split(":")
    gateway = running.settings.gateway.model_copy(update={"host": host, "port": int(port)})
    config = running.settings.model_copy(update={**judged, "gateway": gateway})
    first = await asyncio.to_thread(judge_agent, config, "support", 10, ask)
    again = await asyncio.to_thread(judge_agent, config, "support", 10, ask)
    assert (first.judged, first.failed, first.told) == (1, 1, 1)
    assert (again.judged, len(asked)) == (0, 2)
    (annotation,) = [r for r in running.chain(response) if r["record"] == "annotation"]
    assert (annotation["name"], annotation["value"], annotation["optimizable"]) == ("judge", 0.0, False)
    assert annotation["source"]["id"] == "judge-1"

    def reward(**rule: Any) -> Any:
        (case,) = read_cases(config, "support", 10, declare(**rule) if rule else None)
        return case.reward

    assert reward() is None
    assert reward(clauses=[{"name": "judge"}]) == 0
    assert reward(clauses=[{"name": "judge", "min_agreement": 0.7}]) is None
