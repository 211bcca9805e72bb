"""Asking a candidate again what was really asked: a real HTTP server, only the model behind it is scripted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from aiohttp import web

from evaluators.credit import leave_one_out
from evaluators.replay import safety_violated, seed_of
from evaluators.replay.branch import Answer, Request
from evaluators.replay.engine import Engine
from evaluators.replay.factory import Made
from evaluators.replay.parts import parts_of
from evaluators.replay.recording import Recording, from_messages
from evoplane.settings import Settings
from flows.ablation import rerunner
from flows.answering import Answerer, answer_cases, answer_repeatedly
from flows.data_factory import Kind, judge_by, rows
from flows.replaying import replay_cases, replay_conversations
from registry import control, tenants
from registry.manifest import Harness, Manifest, MemoryItem, Policy
from tests.evaluators.conftest import make_case
from tests.evaluators.test_engine import CANCEL, EFFECTS, TRACK, result, said, user


class Model:
    """An OpenAI-compatible server that plays a script: a message, or a status, by the last thing it was told."""

    def __init__(self) -> None:
        self.script: dict[str, dict[str, Any] | int] = {}
        self.asked: list[dict[str, Any]] = []
        self.reads = ""
        """Instead of the script: answered when it is somewhere in the prompt."""
        self._loop = asyncio.new_event_loop()
        self._up = asyncio.Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._up.wait(), self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(self._serve())
        self._loop.run_forever()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/tokenize", self._tokenise)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._up.set()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        told = self.script.get(body["messages"][-1]["content"], 500)
        if self.reads:
            told = said(self.reads if self.reads in str(body["messages"]) else "9 days")
        if isinstance(told, int):
            return web.json_response({"error": {"message": "no"}}, status=told)
        choice: dict[str, Any] = {"message": told, "token_ids": [5, 2],
                                  "logprobs": {"content": [{"logprob": -0.5}, {"logprob": 0.0}]}}  # fmt: skip
        return web.json_response({"model": body["model"], "choices": [choice], "prompt_token_ids": [1, 9]})

    async def _tokenise(self, request: web.Request) -> web.Response:
        """Three tokens a message: its beginning, its length, and a line break after the end of turn."""
        body = await request.json()
        made = []
        for message in body["messages"]:
            made += [(1, "<"), (3 + len(message.get("content") or ""), "x"), (2, "\n")]
        made += [(1, "<")] if body["add_generation_prompt"] else []
        return web.json_response({"tokens": [t for t, _ in made], "token_strs": [s for _, s in made]})

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


@pytest.fixture
def model() -> Iterator[Model]:
    running = Model()
    yield running
    running.stop()


@pytest.fixture
def config(model: Model, tmp_path: Path) -> Settings:
    found = Settings.model_validate(
        {
            "paths": {"var": str(tmp_path)},
            "worker": {"vllm_port": model.port},
            "replay": {"protected_tools": ["change_address"]},
        }
    )
    environment = "examples.support.environment:ShopEnvironment"
    tenants.create_agent(control.connect(found.control_db), "support", "base", environment)
    return found


CANDIDATE = Manifest(
    policy=Policy(base="base", served_name="support-2"),
    harness=Harness(system_append="Be brief.", params={"top_p": 0.5}),
)


def test_a_candidate_is_asked_as_the_gateway_would_ask_under_the_cases_own_seed(model: Model, config: Settings) -> None:
    case = make_case(params={"temperature": 0.7, "stream_options": {"include_usage": True}}, text="12 months")
    model.script["How long is the warranty?"] = said("12 months")
    assert answer_cases(config, CANDIDATE, [case])[case.key].text == "12 months"  # type: ignore[union-attr]
    (body,) = model.asked
    assert (body["model"], body["top_p"], body["temperature"]) == ("support-2", 0.5, 0.7)
    assert body["seed"] == seed_of(case.event_id) and "stream_options" not in body
    assert body["messages"][0]["role"] == "system" and "Be brief." in body["messages"][0]["content"]


def test_repeats_have_seeds_of_their_own_and_the_clients_seed_comes_first(model: Model, config: Settings) -> None:
    case = make_case(params={"seed": 7})
    model.script["How long is the warranty?"] = said("12 months")
    answers = answer_repeatedly(config, CANDIDATE, [case], 3)
    assert len(answers[case.key]) == 3
    assert {body["seed"] for body in model.asked} == {7, seed_of(case.event_id, 1), seed_of(case.event_id, 2)}


def test_a_server_that_fails_is_asked_twice_and_one_that_refuses_once(model: Model, config: Settings) -> None:
    broken, refused = make_case("Broken?"), make_case("Refused?")
    model.script = {"Broken?": 503, "Refused?": 400}
    assert set(answer_cases(config, CANDIDATE, [broken, refused]).values()) == {None}
    assert sorted(b["messages"][-1]["content"] for b in model.asked) == ["Broken?", "Broken?", "Refused?"]


def test_token_ids_and_logprobs_come_along_for_training_rows(model: Model, config: Settings) -> None:
    model.script["Hello"] = said("Hi.")

    async def ask() -> Any:
        async with Answerer(config, CANDIDATE, token_ids=True) as answer:
            return await answer(Request(tenant="t", messages=[user("Hello")], tools=[], params={}, seed=1))

    answer = asyncio.run(ask())
    assert (answer.prompt_token_ids, answer.completion_token_ids, answer.logprobs) == ([1, 9], [5, 2], [-0.5, 0.0])
    assert model.asked[0]["return_token_ids"] and model.asked[0]["logprobs"]


def test_a_protected_tool_called_more_often_than_by_the_champion_is_a_violation(model: Model, config: Settings) -> None:
    cases = [
        make_case(f"Where is A{n}?", reward=1.0, calls=[("track_order", {"order_id": f"A{n}"})]) for n in range(12)
    ]
    for case in cases:
        model.script[case.request] = said("", ("change_address", {"order_id": "A1", "city": "Rome"}))
    found = replay_cases(config, CANDIDATE, cases, cases)
    assert (found.safety.champion.value, found.safety.candidate.value) == (0.0, 1.0)
    assert safety_violated(found, margin=0.02)


def conversations() -> list[Recording]:
    messages = [user("Where is A1?"), said("", TRACK), result("order A1: shipped"), said("On its way."),
                user("Cancel it."), said("", CANCEL), result("order A1: ok"), said("Cancelled.")]  # fmt: skip
    return [from_messages(f"tr_{n}", messages, effects=EFFECTS, agent="support", tenant="northwind", success=n != 0)
            for n in range(4)]  # fmt: skip


def test_whole_conversations_are_re_made_with_the_tools_in_a_sandbox(model: Model, config: Settings) -> None:
    model.script = {
        "Where is A1?": said("", TRACK),
        "order A1: shipped": said("On its way."),
        "Cancel it.": said("", ("start_return", {"order_id": "A1", "reason": "damaged"}), CANCEL),
        "order A1: ok": said("Cancelled."),
    }
    found = replay_conversations(config, CANDIDATE, conversations(), conversations())
    assert found.unknown == 4, "another write: nobody knows whether that was right"
    model.script["Cancel it."] = said("", CANCEL)
    found = replay_conversations(config, CANDIDATE, conversations(), conversations())
    assert (found.unknown, found.improvement.value, found.lost.value) == (0, 0.0, 0.0)
    assert found.klass.deterministic == 1.0


def test_the_data_factory_samples_the_policy_and_asks_the_stronger_model(model: Model, config: Settings) -> None:
    messages = [user("Where is A1?"), said("", TRACK), result("order A1: shipped"), said("On its way.")]
    recording = from_messages("tr_1", messages, effects=EFFECTS, agent="support", success=True, train_eligible=True)
    model.script = {"Where is A1?": said("", TRACK), "order A1: shipped": said("On its way.")}

    def made(kind: Kind) -> Made:
        return asyncio.run(rows(config, CANDIDATE, kind, [(recording, 1)], judge_by({}), samples=3))

    sampled = made("group").rows
    assert len(sampled) == 6 and {r["reward"] for r in sampled} == {1.0}
    assert sampled[0]["completion_token_ids"] == [5, 2]
    with pytest.raises(ValueError, match="teacher_url"):
        made("imitation")
    there = config.replay.model_copy(update={"teacher_url": f"http://127.0.0.1:{model.port}/v1"})
    config = config.model_copy(update={"replay": there})
    model.asked.clear()
    target = made("imitation").rows[1]
    assert model.asked[0]["model"] == "" and len(model.asked) == 2, "the stronger model, under no overlay"
    assert target["completion_token_ids"] == [3 + len("On its way.")], "without the template's line break"
    assert len(target["prompt_token_ids"]) == 3 * 4 + 1, "as the policy is asked: with its overlay's system text"
    assert "logprobs" not in target


def test_what_the_end_does_not_tell_the_decision_itself_may(config: Settings) -> None:
    recording = from_messages("tr_1", [user("How long?"), said("9 days"), user("Thanks?"), said("Welcome.")],
                              event_ids={1: "ev_1"})  # fmt: skip
    case = make_case("How long?", event_id="ev_1", corrections=["The warranty is 12 months."])

    async def answer(request: Request) -> Answer:
        return Answer(message=said("12 months"))

    (branch,) = asyncio.run(Engine().branches(recording, 1, answer))
    assert branch.end == "user_diverged"
    assert (judge_by({})(recording, branch), judge_by({(recording.tenant, "ev_1"): case})(recording, branch)) == (
        "unknown",
        "success",
    )


def test_leaving_out_a_note_shows_that_the_answer_was_read_off_it(model: Model, config: Settings) -> None:
    """The scripted model knows what is in its prompt, and nothing else."""
    facts = {"warranty": "The warranty is 12 months.", "delivery": "The delivery time is 3 days."}
    notes = [MemoryItem(id=f"mem_{topic}", tenant="northwind", topic=topic, text=text, trust="vetted")
             for topic, text in facts.items()]  # fmt: skip
    manifest = Manifest(policy=CANDIDATE.policy, memory=tuple(notes))
    case = make_case("How long is the warranty?", corrections=["The warranty is 12 months."])
    model.reads = "12 months"
    first, second = leave_one_out(parts_of(manifest, case.messages), rerunner(config, manifest, case, repeats=8))
    assert (first.part.id, first.state, first.with_it, first.without) == ("mem_warranty", "helps", 1.0, 0.0)
    assert (second.part.id, second.state) == ("mem_delivery", "no difference found")


@pytest.mark.stack
def test_the_command_replays_a_registered_version(world: Any) -> None:
    world.serve(24)
    tool = str(Path(sys.executable).parent / "evoplane")
    command = [tool, "replay", "--agent", "support", "--cases", "12", "--candidate", "1"]
    environment = world.environment
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["candidate"] == "1" and found["results"]
    wrong = subprocess.run([*command[:-1], "99"], env=environment, capture_output=True, text=True, timeout=120)
    assert wrong.returncode == 1 and "no version 99" in wrong.stderr
