"""The data factory: training rows from decisions that were re-made.

From any recorded step: a stronger model's answer (a target to imitate, or the chosen side of a pair), the successes
among n samples (rejection sampling), or all samples as a group. Rows have the form that
`services/worker/training/examples.py` defines, with one key more, `provenance`, which trainers pass over. Only
recordings that may be trained on give rows, and what gives none is counted by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from evaluators.cases import same_action
from evaluators.replay.branch import Answer, Branch, judge_branch
from evaluators.replay.judging import Judgement
from evaluators.replay.recording import Recording

Row = dict[str, Any]
Encode = Callable[[Branch, Answer], tuple[list[int], list[int]] | None]
"""Prompt and completion ids of another model's answer in the trained policy's tokenizer; None when it can't be said."""
Judge = Callable[[Recording, Branch], Judgement]


class Made(msgspec.Struct, frozen=True):
    rows: tuple[Row, ...]
    dropped: dict[str, int]
    """What gave no row, by reason."""


class Sampled(msgspec.Struct, frozen=True):
    """A recorded decision, and what was re-made from it."""

    recording: Recording
    branches: Sequence[Branch]


def imitation(sampled: Sequence[Sampled], encode: Encode | None = None, judge: Judge = judge_branch) -> Made:
    """One row for each decision: the first branch's answer, as a target for supervised training.

    Meant for a stronger model's branches; an answer that is known to have failed is not imitated.
    """
    maker = _Maker("sft")
    for of in sampled:
        for branch in maker.allowed(of)[:1]:
            if judge(of.recording, branch) == "failure":
                maker.dropped["failed"] += 1
            else:
                maker.add(of.recording, branch, encode=encode)
    return maker.made()


def rejection_sampled(sampled: Sequence[Sampled], judge: Judge = judge_branch) -> Made:
    """The policy's own samples that succeeded, each with reward 1."""
    maker = _Maker("rft")
    for of in sampled:
        for branch in maker.allowed(of):
            verdict = judge(of.recording, branch)
            if verdict == "success":
                maker.add(of.recording, branch, reward=1.0)
            else:
                maker.dropped["failed" if verdict == "failure" else "unknown outcome"] += 1
    return maker.made()


def group(sampled: Sequence[Sampled], judge: Judge = judge_branch) -> Made:
    """Groups of samples of one decision, with their rewards; fewer than two known outcomes are no group."""
    maker = _Maker("group")
    for of in sampled:
        known = [(b, v) for b in maker.allowed(of) if (v := judge(of.recording, b)) != "unknown"]
        maker.dropped["unknown outcome"] += len(of.branches) - len(known) if of.recording.train_eligible else 0
        if len(known) < 2:
            maker.dropped["group of one"] += len(known)
            continue
        for branch, verdict in known:
            name = f"{of.recording.id}/{branch.start}"
            maker.add(of.recording, branch, reward=float(verdict == "success"), group=name)
    return maker.made()


def preferences(
    chosen: Sequence[Sampled],
    rejected: Sequence[Sampled],
    encode: Encode | None = None,
    judge: Judge = judge_branch,
    confirmed: bool = True,
) -> Made:
    """Pairs for the same decision: `chosen` (a stronger model's, or samples) against `rejected` (the policy's).

    A pair needs the same prompt, two different answers, a chosen side that did not fail and a rejected one that did
    not succeed; with `confirmed`, at least one of the two must be known.
    """
    maker = _Maker("dpo")
    weaker = {(of.recording.tenant, of.recording.id, b.start): b for of in rejected for b in of.branches[:1]}
    for of in chosen:
        for better in maker.allowed(of)[:1]:
            worse = weaker.get((of.recording.tenant, of.recording.id, better.start))
            if worse is None or not better.answers or not worse.answers:
                maker.dropped["no other side"] += 1
            elif reason := _no_pair(of.recording, better, worse, judge, confirmed):
                maker.dropped[reason] += 1
            else:
                maker.pair(of.recording, better, worse, encode)
    return maker.made()


def _no_pair(recording: Recording, better: Branch, worse: Branch, judge: Judge, confirmed: bool) -> str | None:
    verdicts = judge(recording, better), judge(recording, worse)
    if better.first is not None and worse.first is not None and same_action(better.first, worse.first):
        return "same answer"
    if verdicts[0] == "failure":
        return "failed"
    if verdicts[1] == "success":
        return "rejected side succeeded"
    if confirmed and verdicts == ("unknown", "unknown"):
        return "unknown outcome"
    return None


class _Maker:
    def __init__(self, kind: Literal["sft", "rft", "group", "dpo"]) -> None:
        self.kind = kind
        self.rows: list[Row] = []
        self.dropped: Counter[str] = Counter()

    def allowed(self, of: Sampled) -> Sequence[Branch]:
        if of.recording.train_eligible:
            return of.branches
        self.dropped["not eligible for training"] += len(of.branches)
        return ()

    def add(self, recording: Recording, branch: Branch, encode: Encode | None = None, **fields: Any) -> None:
        """A row for each answer of the branch; what the branch came to is every answer's reward."""
        for turn, answer in enumerate(branch.answers):
            row = self._row(recording, branch, answer, encode, turn)
            if row is None:
                self.dropped["no token ids"] += 1
            else:
                self.rows.append(row | fields)

    def pair(self, recording: Recording, better: Branch, worse: Branch, encode: Encode | None) -> None:
        chosen = self._row(recording, better, better.answers[0], encode, 0)
        rejected = self._row(recording, worse, worse.answers[0], encode, 0)
        if chosen is None or rejected is None:
            self.dropped["no token ids"] += 1
        elif chosen["prompt_token_ids"] != rejected["prompt_token_ids"]:
            self.dropped["another prompt"] += 1
        else:
            name = f"{recording.tenant}/{recording.id}/{better.start}"
            self.rows += [chosen | {"pair": name, "role": "chosen"}, rejected | {"pair": name, "role": "rejected"}]

    def made(self) -> Made:
        return Made(tuple(self.rows), {k: n for k, n in self.dropped.items() if n})

    def _row(
        self, recording: Recording, branch: Branch, answer: Answer, encode: Encode | None, turn: int
    ) -> Row | None:
        own = bool(answer.prompt_token_ids and answer.completion_token_ids)
        ids = (answer.prompt_token_ids, answer.completion_token_ids) if own else encode and encode(branch, answer)
        if not ids:
            return None
        row: Row = {
            "prompt_token_ids": list(ids[0]),
            "completion_token_ids": list(ids[1]),
            "provenance": {
                "made_by": f"replay.{self.kind}",
                "tenant": recording.tenant,
                "agent": recording.agent,
                "trajectory_id": recording.id,
                "event_id": recording.event_ids.get(branch.start, ""),
                "seed": branch.seed,
                "turn": turn,
                "class": branch.klass,
                "policy": answer.policy_version,
                "eligible": {"train": True},
            },
        }
        if own and len(answer.logprobs) == len(answer.completion_token_ids):
            row["logprobs"] = list(answer.logprobs)
        return row
