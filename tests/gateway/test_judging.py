"""A judge's verdicts through a real gateway into the log: told once, with the judge's name, never for optimising."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from dashboards.reading import read_cases
from evaluators.next_state.classifier import use
from evaluators.next_state.training import train
from evaluators.rewards import declare
from evaluators.text_drift import embed as embed_texts
from evoplane.settings import Settings
from tests.evaluators.next_state.test_next_state import labelled
from tests.gateway.conftest import Running, user


def reached(running: Running) -> Settings:
    """The settings with which flows find the gateway under test."""
    host, port = running.url.removeprefix("http://").split(":")
    gateway = running.settings.gateway.model_copy(update={"host": host, "port": int(port)})
    return running.settings.model_copy(update={"gateway": gateway})


async def test_answers_are_judged_once_and_count_only_where_the_rule_says_so(running: Running) -> None:
    from flows.judging import judge_agent  # prefect is imported with it

    asked: list[str] = []

    async def ask(messages: list[dict[str, str]], seed: int) -> str:
        asked.append(messages[-1]["content"])
        return json.dumps({"verdict": "fail", "reason": "made up", "violated": ["true"]})

    response = await running.chat([user("How long is the warranty?")])
    judged = {"judge": running.settings.judge.model_copy(update={"model": "judge-1", "votes": 2})}
    config = reached(running).model_copy(update=judged)
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


async def test_what_a_user_replied_is_read_by_the_trained_classifier_and_told_once(running: Running) -> None:
    from flows.replies import NotTrained, read_agent

    config, words = reached(running), partial(embed_texts, method="lexical")
    with pytest.raises(NotTrained, match="learn-replies"):
        read_agent(config, "support", 10, words, "words")
    use(config.var / "next_state" / "support", train(labelled(), words, "words", precision=0.8))
    first = await running.chat([user("Where is my order A-17?")])
    said = {"role": "assistant", "content": (await first.json())["choices"][0]["message"]["content"]}
    await running.chat([user("Where is my order A-17?"), said, user("That's wrong, wrong order. Wrong again.")])
    told = [await asyncio.to_thread(read_agent, config, "support", 10, words, "words") for _ in range(2)]
    assert told[0] == told[1] == {"replies": 1, "told": 1}
    found = [r for r in running.chain(first) if r["record"] == "annotation" and r["name"] == "next_state"]
    assert [(a["value"], a["source"]["kind"], a["optimizable"]) for a in found] == [(0.0, "reward_model", False)]
