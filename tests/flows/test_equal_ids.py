"""Two tenants import trajectories with equal ids: nobody's answers, outcomes or words are another's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from atdp import convert
from dashboards.reading import CaseReader
from evaluators import corrections, quality, replay
from evaluators.cases import Action, Call, Case
from evaluators.diagnosis import diagnose
from evaluators.judges.bias import judgements_of
from evaluators.replay.branch import Answer
from evaluators.replay.engine import Engine
from evaluators.replay.recording import from_messages
from evaluators.replay.safety import on_cases
from evaluators.rewards import DEFAULT_RULE, Signal
from evaluators.rewards.agreement import by_source
from evaluators.statistics import summarise
from evoplane.settings import Settings
from flows import probes
from flows.answering import answer_cases
from flows.data_factory import judge_by
from flows.interventions.sources import sessions_of
from registry.manifest import Manifest, Policy
from services.proxy import importing
from services.proxy.store import EventStore, StoreReader
from tests.evaluators.conftest import make_case
from tests.evaluators.test_engine import said, user
from tests.flows.test_replaying import Model
from tests.flows.test_row_sets import build, entry
from tests.proxy.drafting import CONTEXT, event, header

TENANTS = ("lumen", "northwind")


def both(**of: list[Any]) -> list[Case]:
    """The same decision ids in each tenant; `of` gives a value for each tenant."""
    return [
        make_case(tenant=tenant, event_id="ev", trajectory_id="tr", session_id="se",
                  **{name: values[n] for name, values in of.items()})
        for n, tenant in enumerate(TENANTS)
    ]  # fmt: skip


@pytest.fixture
def model() -> Iterator[Model]:
    running = Model()
    yield running
    running.stop()


def test_imports_with_equal_ids_are_read_as_two_trajectories_again_and_again(tmp_path: Path) -> None:
    async def take() -> None:
        store = EventStore(tmp_path)
        await store.start()
        for tenant in TENANTS:
            call = msgspec.to_builtins(event("e9", "t9", f"Where is the {tenant} parcel?", kind="llm_call"))
            call["a"] = {
                "messages": [{"role": "assistant", "parts": [{"type": "text", "content": f"{tenant} knows."}]}]
            }
            records = [msgspec.to_builtins(CONTEXT), msgspec.to_builtins(header("t9")), call]
            job = importing.Import(store, tenant, "support", "allow")
            data = b"".join(orjson.dumps(r) + b"\n" for r in records)
            await job.take(convert.get("atdp").read(data, convert.ReadOptions("support", "file.jsonl")).records)
            await job.finish()
        await store.close()

    asyncio.run(take())
    reader = CaseReader(StoreReader(tmp_path), "support", DEFAULT_RULE)
    for _ in range(2):  # the second time from what is remembered
        assert {(c.tenant, c.event_id, c.action.text) for c in reader.read()} == {
            (tenant, "e9", f"{tenant} knows.") for tenant in TENANTS
        }


def test_each_tenants_case_is_judged_by_the_answer_to_its_own_request(model: Model, tmp_path: Path) -> None:
    cases = both(request=["How long is the warranty?", "How long is delivery?"],
                 corrections=[["The warranty is 24 months."], ["The delivery time is 4 days."]])  # fmt: skip
    model.script = {"How long is the warranty?": said("24 months"), "How long is delivery?": said("4 days")}
    config = Settings.model_validate({"paths": {"var": str(tmp_path)}, "worker": {"vllm_port": model.port}})
    answers = answer_cases(config, Manifest(policy=Policy(base="b", served_name="s")), cases)
    compared = replay.compare(cases, answers)
    assert {(r.tenant, r.answer, r.candidate) for r in compared.results} == {
        ("lumen", "24 months", "success"), ("northwind", "4 days", "success")
    }  # fmt: skip
    assert (compared.fixed.value, compared.fixed.n) == (1.0, 2)
    assert probes.tests_failed(cases, answers) == ()
    lost = probes.probes_lost(cases, answers, 0.05)
    assert lost is not None and (lost.value, lost.n) == (0.0, 2)


def test_what_one_tenants_answer_violates_is_not_the_others() -> None:
    cases = both(request=["a", "b"])
    wire = Action(calls=(Call("wire_money", {}),))
    found = on_cases(cases, {cases[0].key: [wire], cases[1].key: [Action(text="no")]}, ["wire_money"])
    assert (found.candidate.value, found.candidate.n) == (0.5, 2)
    assert found.examples == ("ev of lumen: protected tool wire_money",)


def test_statistics_and_diagnosis_count_both() -> None:
    cases = both(request=["a", "b"], reward=[1.0, 0.0])
    found = summarise(cases, target=0.9, min_outcomes=1, ended={cases[0].trajectory: "idle", cases[1].trajectory: None})
    assert (found.seen, found.judged, found.success.value) == (2, 2, 0.5)
    assert {t: i.value for t, i in found.by_tenant.items()} == {"lumen": 1.0, "northwind": 0.0}
    assert found.repeated.n == 0 and found.abandoned.n == 1
    assert len(sessions_of(cases)) == 2
    (cluster,) = diagnose(both(request=["a", "b"]), alpha=0.05).clusters
    assert set(cluster.events) == {(tenant, "ev") for tenant in TENANTS}


def test_sources_and_judges_are_counted_by_the_tenants_own_trajectories() -> None:
    def told(value: float) -> tuple[Signal, ...]:
        at = "2026-01-01T00:00:00Z"
        return (
            Signal(id="an_1", name="resolved", value=value, source="environment", at=at, written=at),
            Signal(id="an_2", name="judge", value=value, source="llm_judge", source_id="j", at=at, written=at),
        )

    cases = both(request=["a", "b"], signals=[told(1.0), told(0.0)], reward=[1.0, 0.0])
    found = by_source(cases)
    assert {(s.source.name, s.trajectories, s.positive.value) for s in found.sources} == {
        ("resolved", 2, 0.5), ("judge", 2, 0.5)
    }  # fmt: skip
    assert [(p.agreement.value, p.agreement.n) for p in found.pairs] == [(1.0, 2)]
    (judged,) = judgements_of(cases, ["environment"]).values()
    assert {(j.verdict, j.outcome) for j in judged} == {(True, True), (False, False)}


def test_the_data_gate_takes_equal_ids_of_two_tenants_and_refuses_them_within_one() -> None:
    rows = [*both(request=["a", "b"], reward=[1.0, 0.0]), *(make_case() for _ in range(10))]
    assert quality.check(quality.frame(rows), 10).passed
    assert not quality.check(quality.frame([*rows, rows[0]]), 10).passed


def test_a_correction_at_one_tenant_is_no_excuse_for_leaving_out_the_others_session() -> None:
    mine, theirs = both(request=["a", "b"], reward=[1.0, 1.0])
    assert replay.usable([mine, theirs], exclude_sessions={mine.session}, facts=corrections.established([])) == [theirs]


def test_a_branch_is_judged_by_its_own_tenants_record() -> None:
    cases = {c.key: c for c in both(request=["How long?", "How long?"],
             corrections=[["The warranty is 24 months."], ["The warranty is 12 months."]])}  # fmt: skip

    async def answer(request: Any) -> Answer:
        return Answer(message=said("12 months"))

    verdicts = {}
    for tenant in TENANTS:
        recording = from_messages("tr", [user("How long?"), said("9 days"), user("Thanks?"), said("Welcome.")],
                                  event_ids={1: "ev"}, tenant=tenant)  # fmt: skip
        (branch,) = asyncio.run(Engine().branches(recording, 1, answer))
        verdicts[tenant] = judge_by(cases)(recording, branch)
    assert verdicts == {"lumen": "failure", "northwind": "success"}


def test_training_rows_of_two_tenants_are_turns_of_two_trajectories(tmp_path: Path) -> None:
    attempts = [entry(1, reward=1.0, answer=(5,)), entry(2, reward=0.0)]
    theirs = [entry(1, reward=0.0, tenant="lumen", answer=(6,)), entry(2, reward=1.0, tenant="lumen")]
    _, made = build([*attempts, *theirs], tmp_path, kind="groups")
    rewards = {(row["trajectory"], row["completion_token_ids"][0]): row["reward"] for row in made}
    assert rewards == {
        ("northwind/tr_1", 5): 1.0, ("northwind/tr_2", 7): 0.0, ("lumen/tr_1", 6): 0.0, ("lumen/tr_2", 7): 1.0,
    }  # fmt: skip
    assert len({row["group"] for row in made}) == 2
    assert "lumen" not in json.dumps([row for row in made if row["trajectory"].startswith("northwind")])
