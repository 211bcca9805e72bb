"""The demo's story: serve, watch, improve twice, survive a bad candidate, report.

The script only plays the world outside the control plane: customers, a colleague, an approver, and a
person who forces a bad version in. Everything else (monitoring, choosing, training, proving,
delivering, rolling back) is done by the flows, started by events.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from evoplane.demo.customers import Customers
from evoplane.demo.poison import poison_adapter
from evoplane.demo.report import BadCandidate, Lift, measure_lift, shortcomings
from evoplane.demo.waiting import DemoFailed, Say, Waiting
from evoplane.settings import Settings
from evoplane.stack import supervisor
from examples.support.desk import Desk, Ticket
from examples.support.scenario import FACTS_AT_START, TENANTS, fact_sentence, facts_now, requests
from registry import approvals, audit, control, pointers, prefect_runs, tenant_policy, tenants, versions
from registry.manifest import Manifest, MemoryItem, Policy
from services.proxy.store import open_reader

AGENT = "support"
APPROVER = "dana"
HELDOUT = 84
"""Held-out requests measured before and after each change: a 20-point lift is then certain."""
FIRST_ROUND = 280
NEXT_ROUND = 90
POLICY_SHARE = 0.4
MAX_IMPROVEMENTS = 3


class Story:
    """One run of the demo on a stack of its own.

    Args:
        config: settings whose run-time directory belongs to the demo; it is emptied first.
        say: receives one line of progress at a time.
    """

    def __init__(self, config: Settings, say: Say):
        self._config = config
        self._say = say
        self._facts = facts_now(changed=True)
        self._started = time.monotonic()
        self._keys: dict[str, dict[str, str]] = {}
        self._batch = 1000
        self._waiting = Waiting(config, AGENT, self._tell)

    def run(self, keep: bool = False) -> dict[str, Any]:
        """The whole story; returns the report. The stack is stopped at the end unless `keep`."""
        try:
            self._fresh_start()
            report = self._play()
        finally:
            if not keep:
                self._tell("stopping the stack")
                supervisor.down(self._config)
        report["seconds"] = round(time.monotonic() - self._started, 1)
        return report

    def _play(self) -> dict[str, Any]:
        self._set_up_agent()
        lifts: dict[str, Lift] = {}
        before = self._measure_heldout()
        for round_number in range(MAX_IMPROVEMENTS):
            ended = self._waiting.ended_evolutions()  # what begins while customers are served counts
            self._serve(FIRST_ROUND if round_number == 0 else NEXT_ROUND)
            version = self._improve(ended)
            after = self._measure_heldout()
            surface = self._surface(version)
            lifts.setdefault(surface, measure_lift(before, after))
            self._tell(f"{surface} change, version {version}: held-out success {lifts[surface].before} → "
                       f"{lifts[surface].after}, lift {lifts[surface].lift}")  # fmt: skip
            before = after
            if {"memory", "policy"} <= lifts.keys():
                break
        bad = self._force_bad_candidate()
        verify = self._verify()
        return {
            **{surface: lift.as_json() for surface, lift in lifts.items()},
            "bad_candidate": msgspec.to_builtins(bad),
            "verify": {"ok": verify["ok"], "events": verify["events"]},
            "shortcomings": shortcomings(lifts, bad, verify),
        }

    # --- the stages -------------------------------------------------------------------------------

    def _fresh_start(self) -> None:
        supervisor.down(self._config)
        shutil.rmtree(self._config.var, ignore_errors=True)
        self._tell("starting the stack: gateway, worker, Prefect, flows, MLflow, Evidently")
        supervisor.up(self._config, detach=True, progress=self._tell)

    def _set_up_agent(self) -> None:
        connection = control.connect(self._config.control_db)
        for id, name in TENANTS.items():
            tenants.create_tenant(connection, id, name, train="allow")
            tenant_policy.put(connection, id, tenant_policy.TenantPolicy(pooling=True), "demo")
        model = self._config.model.name
        tenants.create_agent(connection, AGENT, model, "examples.support.environment:ShopEnvironment", (APPROVER,))
        manifest = Manifest(policy=Policy(base=model, served_name=model), memory=_facts_at_start())
        first = versions.register(self._config, connection, AGENT, manifest, description="the agent as it came")
        pointers.set_champion(connection, AGENT, first.version, "first version", "demo")
        versions.mirror_aliases(self._config, connection, AGENT)
        for purpose in ("serve", "evaluate", "operate"):
            self._keys[purpose] = {
                tenant: tenants.create_key(connection, tenant, AGENT, purpose, owner="demo")[1] for tenant in TENANTS
            }
        self._tell(f"agent {AGENT!r} of {len(TENANTS)} tenants is version {first.version}: {model}, 15 known facts")

    def _measure_heldout(self) -> list[bool]:
        """Success on the held-out requests, in request order. Nothing of this is ever trained on."""
        asked = requests("heldout", HELDOUT, seed=7, policy_share=POLICY_SHARE)
        tickets = asyncio.run(self._desk("evaluate", report=False).serve(asked, self._counter(HELDOUT, "held-out")))
        self._require_answers(tickets)
        right = {ticket.request.id: ticket.right for ticket in tickets}
        return [right[request.id] for request in asked]

    def _serve(self, n: int) -> None:
        self._batch += 1
        asked = requests("train", n, seed=self._batch, policy_share=POLICY_SHARE)
        tickets = asyncio.run(self._desk("serve").serve(asked, self._counter(n, "customers")))
        self._require_answers(tickets)
        right = sum(t.right for t in tickets)
        self._tell(f"{n} customers served, {right} resolved; outcomes, corrections and demonstrations are in")

    def _improve(self, ended: frozenset[str]) -> str:
        """Ask the monitor to look, then be the customers and the approver until a change is promoted.

        `ended` are the evolutions that were over before this round.
        """
        old = self._route().champion
        prefect_runs.emit_event(self._config, "evoplane.monitor.requested", AGENT, {"agent": AGENT})
        self._tell("monitor asked to look; from here events drive the flows")
        candidate = self._candidate(old, ended)
        self._batch += 1000
        with Customers(self._desk("serve"), self._batch) as customers:
            self._tell(f"candidate version {candidate} meets live traffic")

            def asked() -> bool:
                customers.check()
                return bool(self._pending())

            self._waiting.until("the canary to pass and approval to be asked", asked)
        approval = self._pending()[0]
        self._tell(f"approval {approval.id} asked for version {approval.version}; {APPROVER} reads and approves")
        self._evoplane("approvals", "approve", approval.id, "--by", APPROVER, "--reason", "evidence is clear")
        self._waiting.until(
            f"promotion of version {approval.version}", lambda: self._route().champion == approval.version
        )
        return approval.version

    def _candidate(self, old: str, ended: frozenset[str]) -> str:
        """The version that is to meet live traffic, once it is in shadow or canary."""
        seen: list[str] = []

        def there() -> bool:
            seen.extend(filter(None, [self._exposed()]))
            return bool(seen) or self._route().champion != old

        self._waiting.until("a candidate in shadow or canary", there, ended_before=ended)
        if not seen:
            raise DemoFailed(
                f"no candidate: version {self._route().champion} serves instead of {old}, and this story did not bring"
                " it; was it changed by other hands?"
            )
        return seen[-1]

    def _force_bad_candidate(self) -> BadCandidate:
        """Register a poisoned adapter, skip replay and shadow, and let the canary find out."""
        connection = control.connect(self._config.control_db)
        good = self._route().champion
        parent = pointers.versions(connection, AGENT)[good]
        healthy = next(v for v in reversed(pointers.versions(connection, AGENT).values()) if v.manifest.policy.path)
        assert healthy.manifest.policy.path is not None
        target = self._config.var / "policies" / "poisoned"
        poison_adapter(self._config.var / healthy.manifest.policy.path, target)
        policy = Policy(
            base=parent.manifest.policy.base,
            served_name=f"{AGENT}-poisoned",
            adapter=versions.adapter_digest(target),
            path="policies/poisoned",
        )
        bad = versions.register(
            self._config, connection, AGENT, msgspec.structs.replace(parent.manifest, policy=policy),
            parent=good, intervention="forced", description="a poisoned adapter, forced in by the demo",
        )  # fmt: skip
        self._tell(f"bad candidate version {bad.version} is forced past replay and shadow")
        self._evoplane("deliver", "--agent", AGENT, "--version", bad.version, "--skip-shadow")
        self._waiting.until("the bad canary to start", lambda: self._route().canary == bad.version)
        self._batch += 1000
        with Customers(self._desk("serve"), self._batch) as customers:

            def out() -> bool:
                customers.check()
                return self._route().canary is None

            self._waiting.until("the canary to abort", out)
            time.sleep(3)  # traffic after the decision: what it is answered by is the measurement
        replies = [reply for ticket in customers.tickets for reply in ticket.replies]
        stops = [
            entry
            for entry in audit.entries(connection, AGENT)
            if entry.action in ("canary.stop", "rollback")
            and bad.version in (entry.detail.get("version"), entry.detail.get("canary"))
        ]
        decided = min((_unix(entry.at) for entry in stops), default=float("inf"))
        late = [reply.sent_at - decided for reply in replies if reply.version == bad.version]
        result = BadCandidate(
            rolled_back=bool(stops) and self._route().champion == good,
            sessions_touched=len({reply.session_id for reply in replies if reply.version == bad.version}),
            seconds_to_all_back=round(max([0.0, *late]), 3),
        )
        self._tell(
            f"bad candidate rolled back: {result.sessions_touched} sessions touched, all traffic back "
            f"{result.seconds_to_all_back:.2f} s after the decision"
        )
        return result

    def _verify(self) -> dict[str, Any]:
        reader = open_reader(self._config)
        problems: list[str] = []
        events = 0
        for tenant in reader.tenants():
            for row in reader.trajectories(tenant):
                problems += reader.verify(tenant, row.trajectory_id)
                events += row.events
        problems += audit.verify(control.connect(self._config.control_db))
        self._tell(f"{events} events verified, {len(problems)} problems")
        return {"ok": not problems, "events": events, "problems": problems}

    # --- helpers ----------------------------------------------------------------------------------

    def _desk(self, purpose: str, report: bool = True) -> Desk:
        return Desk(self._config.gateway_url, self._keys[purpose], self._config.model.name, self._facts, report)

    def _route(self) -> pointers.Route:
        return pointers.read_route(control.connect(self._config.control_db), AGENT)

    def _exposed(self) -> str | None:
        route = self._route()
        return route.shadow or route.canary

    def _pending(self) -> list[approvals.Approval]:
        connection = control.connect(self._config.control_db)
        return [a for a in approvals.list_approvals(connection, AGENT) if a.status == "pending"]

    def _surface(self, version: str) -> str:
        return pointers.versions(control.connect(self._config.control_db), AGENT)[version].intervention

    def _counter(self, total: int, what: str) -> Callable[[Ticket], None]:
        served = 0

        def count(ticket: Ticket) -> None:
            nonlocal served
            served += 1
            if served % 60 == 0 or served == total:
                self._tell(f"{what}: {served} of {total}")

        return count

    def _require_answers(self, tickets: list[Ticket]) -> None:
        failed = [t for t in tickets if t.error]
        if failed:
            raise DemoFailed(f"{len(failed)} of {len(tickets)} requests failed, the first with {failed[0].error}")

    def _evoplane(self, *arguments: str) -> None:
        command = [str(Path(sys.executable).with_name("evoplane")), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise DemoFailed(f"`evoplane {' '.join(arguments)}` failed: {done.stderr.strip() or done.stdout.strip()}")

    def _tell(self, line: str) -> None:
        self._say(f"[{time.monotonic() - self._started:6.0f} s] {line}")


def _facts_at_start() -> tuple[MemoryItem, ...]:
    return tuple(
        MemoryItem(
            id=f"mem_{tenant}_{topic.replace(' ', '_')}",
            tenant=tenant,
            topic=topic,
            text=fact_sentence(topic, value),
            trust="vetted",
            provenance=("operator",),
            created_at=control.now(),
        )
        for tenant, sheet in FACTS_AT_START.items()
        for topic, value in sheet.items()
    )


def _unix(at: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(at).timestamp()
