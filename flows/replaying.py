"""Replaying a registered version, or any manifest, against what the champion did.

    python -m flows.replaying AGENT VERSION [--cases N] [--repeats M] [--whole] [--base-url URL]

writes JSON lines: `{"done": k, "of": n}` while it works, then `{"replay": …}` or `{"error": …}`.
`evoplane replay` runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import orjson

from dashboards.reading import CaseReader, served
from evaluators import corrections
from evaluators.cases import Case, action_of
from evaluators.environments import Environment, UnknownEnvironment, UnsafeEnvironment, load
from evaluators.replay import CaseResult, Replay, SafetyPair, compare, safety, select, usable
from evaluators.replay.branch import Branch, judge_branch
from evaluators.replay.compare import from_results
from evaluators.replay.engine import Engine
from evaluators.replay.recording import Recording, from_records
from evaluators.replay.safety import forbidden_calls, on_cases
from evaluators.replay.tape import READS, Recorded
from evoplane.settings import Settings, ending_when_wrong, settings
from flows.answering import Answerer, answer_repeatedly
from registry import control, pointers, tenants
from registry.manifest import Manifest
from registry.tenants import RegistryError
from services.proxy.store import open_reader

OnAnswer = Callable[[], None]


def replay_cases(
    config: Settings,
    manifest: Manifest,
    cases: Sequence[Case],
    population: Sequence[Case],
    *,
    repeats: int | None = None,
    base_url: str | None = None,
    on_answer: OnAnswer = lambda: None,
) -> Replay:
    """The candidate on single decisions: answers, judgement by the tape, and its violations beside the champion's."""
    answers = answer_repeatedly(config, manifest, cases, repeats or config.replay.repeats, on_answer, base_url)
    alpha = config.monitor.alpha
    violations = on_cases(cases, answers, config.replay.protected_tools, alpha)
    return compare(cases, answers, alpha, population, safety=violations)


def replay_conversations(
    config: Settings,
    manifest: Manifest,
    recordings: Sequence[Recording],
    population: Sequence[Recording],
    *,
    repeats: int | None = None,
    base_url: str | None = None,
    on_answer: OnAnswer = lambda: None,
) -> Replay:
    """The candidate on whole conversations from their first decision on; `population` is what they were taken from."""
    reads: dict[str, list[Recorded]] = {}
    for recording in population:
        reads.setdefault(recording.tenant, []).extend(a for a in recording.actions if a.effect in READS)
    engine = Engine(
        environment=environments(config),
        elsewhere=reads,
        protected=config.replay.protected_tools,
        max_steps=config.replay.max_steps,
    )

    async def run() -> list[list[Branch]]:
        async with Answerer(config, manifest, base_url=base_url) as answer:

            async def one(recording: Recording) -> list[Branch]:
                start = recording.decisions()[0]
                found = await engine.branches(recording, start, answer, repeats or config.replay.repeats)
                on_answer()
                return found

            return list(await asyncio.gather(*map(one, recordings)))

    branches = asyncio.run(run())
    results, pairs = [], []
    for recording, made in zip(recordings, branches, strict=True):
        own = tuple(
            v
            for m in recording.messages
            if m.get("role") == "assistant"
            for v in forbidden_calls(action_of(m), protected=engine.protected)
        )
        for branch in made:
            said = branch.final.text if branch.final else ""
            results.append(CaseResult(recording.id, recording.tenant, bool(recording.success),
                                      judge_branch(recording, branch), said[:200], branch.repeat))  # fmt: skip
            pairs.append(SafetyPair((recording.tenant, recording.id), own, branch.violations, branch.repeat))
    flat = [b for made in branches for b in made]
    tested = bool(engine.protected) or any(b.violations for b in flat)
    return from_results(
        results,
        [(r.tenant, bool(r.success)) for r in population],
        config.monitor.alpha,
        unanswered=sum(b.end == "unanswered" for b in flat),
        safety=safety(pairs if tested else [], config.monitor.alpha),
        classes=[b.klass for b in flat],
    )


def environments(config: Settings) -> Callable[[Recording], Environment | None]:
    """Gives a recording its agent's environment (`tenants.Agent.environment`), reset to where the recording began."""
    named = {a.name: a.environment for a in tenants.list_agents(control.connect(config.control_db)) if a.environment}

    def make(recording: Recording) -> Environment | None:
        name = named.get(recording.agent)
        if name is None:
            return None
        environment = load(name)
        environment.reset(options={"task": recording.task} if recording.task else None)
        return environment

    return make


def recordings_of(config: Settings, agent: str, version: str) -> list[Recording]:
    """The champion's conversations that have an outcome."""
    reader = open_reader(config)
    found = []
    for tenant in reader.tenants():
        for row in reader.trajectories(tenant, agent=agent):
            records = reader.resolve_all(tenant, reader.records(tenant, row.trajectory_id))
            if not _served_by(records, version):
                continue
            recording = from_records(tenant, records, lambda context, of=tenant: reader.tools(of, context))  # type: ignore[misc]
            if recording is not None and recording.success is not None and recording.decisions():
                found.append(recording)
    return found


def _served_by(records: Sequence[dict[str, Any]], version: str) -> bool:
    tags = [(r.get("m") or {}).get("tags") or {} for r in records if r.get("kind") == "llm_call"]
    return bool(tags) and all(
        t.get("agent_version") == version and t.get("role", "champion") == "champion" and t.get("purpose") == "serve"
        for t in tags
    )


def replay_version(
    config: Settings,
    agent: str,
    candidate: str,
    *,
    cases: int,
    repeats: int,
    whole: bool = False,
    base_url: str | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """A registered version against the agent's champion; raises `RegistryError` for an unknown agent or version."""
    connection = control.connect(config.control_db)
    known = pointers.versions(connection, agent)
    champion = pointers.read_route(connection, agent).champion
    if candidate not in known:
        raise RegistryError(f"{agent} has no version {candidate}; it has {', '.join(known) or 'none'}")
    manifest = known[candidate].manifest
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    if whole:
        population = recordings_of(config, agent, champion)
        taken = population[-cases:]
        total = len(taken)
        found = replay_conversations(config, manifest, taken, population, repeats=repeats, base_url=base_url,
                                     on_answer=one_more)  # fmt: skip
    else:
        current = served(CaseReader(open_reader(config), agent).read(), champion)
        usable_cases = usable(current, facts=corrections.established(current))
        chosen = select(usable_cases, cases)
        total = len(chosen) * repeats
        found = replay_cases(config, manifest, chosen, usable_cases, repeats=repeats, base_url=base_url,
                             on_answer=one_more)  # fmt: skip
    return {"agent": agent, "champion": champion, "candidate": candidate, **msgspec.to_builtins(found)}


def main() -> int:
    told = _arguments().parse_args()
    config = settings()

    def progress(done: int, of: int) -> None:
        _say({"done": done, "of": of})

    try:
        found = replay_version(
            config,
            told.agent,
            told.version,
            cases=told.cases or config.evolve.replay_cases,
            repeats=told.repeats or config.replay.repeats,
            whole=told.whole,
            base_url=told.base_url,
            progress=progress,
        )
    except (RegistryError, UnknownEnvironment, UnsafeEnvironment) as error:
        _say({"error": str(error)})
        return 1
    _say({"replay": found})
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flows.replaying")
    parser.add_argument("agent")
    parser.add_argument("version")
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--base-url")
    return parser


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with ending_when_wrong():
        sys.exit(main())
