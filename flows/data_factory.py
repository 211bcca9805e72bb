"""Training rows from an agent's recorded decisions, re-made by itself or by a stronger model.

    python -m flows.data_factory AGENT imitation|preferences|rejection|group FILE [--decisions N] [--samples M]

writes JSON lines in the trainer's form and prints what was made and what was not, and why. Recordings that may not be
trained on are never asked about.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import aiohttp
import msgspec
import orjson

from dashboards.reading import CaseReader, served
from evaluators.cases import Case, Key
from evaluators.replay.branch import Answer, Branch, Request, judge_branch
from evaluators.replay.engine import Engine, replay_all
from evaluators.replay.factory import Judge, Made, Sampled, group, imitation, preferences, rejection_sampled
from evaluators.replay.judging import Judgement, judge
from evaluators.replay.recording import Recording
from evoplane.settings import Settings, ending_when_wrong, settings
from flows.answering import Answerer, teacher
from flows.replaying import environments, recordings_of
from registry import control, pointers
from registry.manifest import Manifest
from registry.tenants import RegistryError
from services.proxy.store import open_reader

Kind = Literal["imitation", "preferences", "rejection", "group"]
KINDS: tuple[Kind, ...] = ("imitation", "preferences", "rejection", "group")
_BLANK = " \n\t\u010a\u0120"
"""Blanks, and how byte-level vocabularies write a line's end and a space."""


def make(config: Settings, agent: str, kind: Kind, *, decisions: int, samples: int) -> Made:
    """Rows from the newest decisions of the champion's recordings.

    Raises `ValueError` when a stronger model is needed and none is set.
    """
    connection = control.connect(config.control_db)
    champion = pointers.read_route(connection, agent).champion
    manifest = pointers.versions(connection, agent)[champion].manifest
    recordings = [r for r in recordings_of(config, agent, champion) if r.train_eligible]
    starts = [(r, start) for r in reversed(recordings) for start in r.decisions()][:decisions]
    cases = {c.key: c for c in served(CaseReader(open_reader(config), agent).read(), champion)}
    return asyncio.run(rows(config, manifest, kind, starts, judge_by(cases), samples))


async def rows(
    config: Settings,
    manifest: Manifest,
    kind: Kind,
    starts: Sequence[tuple[Recording, int]],
    verdict: Judge,
    samples: int,
) -> Made:
    """Rows of one kind from these decisions, re-made under `manifest` and, if need be, by the stronger model."""
    engine = Engine(environment=environments(config), max_steps=config.replay.max_steps)
    async with Answerer(config, manifest, token_ids=True) as policy:
        if kind in ("rejection", "group"):
            made = await replay_all(engine, starts, policy, repeats=samples)
            sampled = [Sampled(r, branches) for (r, _), branches in zip(starts, made, strict=True)]
            return (rejection_sampled if kind == "rejection" else group)(sampled, verdict)
        async with teacher(config) as stronger:
            told = await replay_all(engine, starts, stronger)
        strong = [
            Sampled(r, [await _encoded(config, policy, r, b) for b in branches])
            for (r, _), branches in zip(starts, told, strict=True)
        ]
        if kind == "imitation":
            return imitation(strong, judge=verdict)
        own = await replay_all(engine, starts, policy)
        weak = [Sampled(r, branches) for (r, _), branches in zip(starts, own, strict=True)]
        return preferences(strong, weak, judge=verdict)


def judge_by(cases: dict[Key, Case]) -> Judge:
    """What the conversation's end says; where it says nothing, what the tape says of the decision itself."""

    def verdict(recording: Recording, branch: Branch) -> Judgement:
        found = judge_branch(recording, branch)
        case = cases.get((recording.tenant, recording.event_ids.get(branch.start, "")))
        return judge(case, branch.first) if found == "unknown" and case is not None else found

    return verdict


async def _encoded(config: Settings, policy: Answerer, recording: Recording, branch: Branch) -> Branch:
    """The stronger model's answers in the policy's tokens, as its server writes them after the policy's own prompt."""
    answers = []
    before = branch.start
    async with aiohttp.ClientSession(config.vllm_url) as http:
        for answer in branch.answers:
            request = Request(tenant=recording.tenant, messages=branch.messages[:before], tools=recording.tools,
                              params=recording.params, seed=branch.seed)  # fmt: skip
            prompt, completion = await _token_ids(http, policy.body(request), answer)
            answers.append(
                msgspec.structs.replace(answer, prompt_token_ids=prompt, completion_token_ids=completion, logprobs=[])
            )
            before = _next_answer(branch, before)
    return msgspec.structs.replace(branch, answers=tuple(answers))


async def _token_ids(http: aiohttp.ClientSession, body: dict[str, Any], answer: Answer) -> tuple[list[int], list[int]]:
    """Ids of the prompt and of the answer with its end of turn; empty where the one doesn't continue the other."""
    asked: dict[str, Any] = {key: body[key] for key in ("model", "messages", "tools") if key in body}
    prompt, _ = await _tokenised(http, {**asked, "add_generation_prompt": True})
    said = [*asked["messages"], answer.message]
    whole, texts = await _tokenised(http, {**asked, "messages": said, "add_generation_prompt": False})
    if not prompt or whole[: len(prompt)] != prompt:
        return [], []
    end = len(whole)
    while end > len(prompt) and not texts[end - 1].strip(_BLANK):
        end -= 1  # the line break after the end of turn is the template's, nobody samples it
    return prompt, whole[len(prompt) : end]


async def _tokenised(http: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[list[int], list[str]]:
    async with http.post("/tokenize", json={**body, "return_token_strs": True}) as reply:
        if reply.status >= 400:
            return [], []
        found = await reply.json()
        return found["tokens"], found["token_strs"]


def _next_answer(branch: Branch, after: int) -> int:
    places = (i for i in range(after + 1, len(branch.messages)) if branch.messages[i].get("role") == "assistant")
    return next(places, len(branch.messages))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.data_factory")
    parser.add_argument("agent")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--decisions", type=int, default=64)
    parser.add_argument("--samples", type=int, default=4)
    told = parser.parse_args()
    try:
        made = make(settings(), told.agent, told.kind, decisions=told.decisions, samples=told.samples)
    except (RegistryError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    told.file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in made.rows))
    sys.stdout.write(orjson.dumps({"rows": len(made.rows), "dropped": made.dropped}).decode() + "\n")
    return 0


if __name__ == "__main__":
    with ending_when_wrong():
        sys.exit(main())
