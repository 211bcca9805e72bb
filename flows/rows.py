"""Trajectories as training rows: captured token ids only, turns merged where one exactly continues the other.

A model call is a turn: the ids it was shown, the ids it gave. Where the prompt of a later turn begins with all that an
earlier one was shown and gave, id for id, both are one row: what stands between them (a tool's result, the template's
own tokens) is marked `observed` and never learned. Where two turns go on from the same one, the conversation is a
tree: the first goes on in its row, the other begins a row whose prompt is everything before. So every sampled token
is in exactly one row. Nothing is decoded and encoded again; a turn whose prefix does not match (a client that rewrote
its history) is a row of its own, and counted.

The form of a row is `services.worker.training.examples`.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

_FREE_CHOICE = (None, "auto", "none")


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One model call as it was sampled."""

    event_id: str
    prompt: list[int]
    completion: list[int]
    logprobs: list[float]
    versions: list[tuple[int, str]]
    """Run lengths: how many tokens which weights gave."""
    temperature: float
    constrained: bool
    """Was a grammar in force? Then a log-probability of exactly 0 is a token without a choice."""


class Row(msgspec.Struct, kw_only=True):
    """Turns that continue each other; lists a number a token are parallel to `completion`."""

    prompt: list[int]
    completion: list[int]
    logprobs: list[float]
    spans: list[tuple[int, int, str]]
    """(start, end, weights) of the policy's own tokens."""
    observed: list[tuple[int, int]]
    forced: list[tuple[int, int]]
    events: list[str]
    temperatures: list[float]

    @property
    def whole(self) -> list[int]:
        return self.prompt + self.completion


class Built(msgspec.Struct, kw_only=True):
    """The rows of one trajectory, and what became of its turns."""

    rows: list[Row]
    dropped: Counter[str]
    merged: int
    """Turns that continue another one's row."""
    branches: int
    """Turns that go on from a turn which already went on elsewhere."""
    unmatched: int
    """Turns that came later and continue nothing."""


def turns(records: Sequence[Mapping[str, Any]]) -> tuple[list[Turn], Counter[str]]:
    """The model calls whose tokens are there and add up, in order, and why the others are not."""
    found: list[Turn] = []
    dropped: Counter[str] = Counter()
    for record in records:
        if record["record"] != "event" or record["kind"] != "llm_call":
            continue
        reason, tokens = _reason(record), record.get("tokens") or {}
        if reason is not None:
            dropped[reason] += 1
            continue
        params = (record.get("a") or {}).get("params") or {}
        found.append(
            Turn(
                event_id=record["id"],
                prompt=tokens["prompt_token_ids"],
                completion=tokens["completion_token_ids"],
                logprobs=tokens["logprobs"],
                versions=[(int(length), weights(str(version))) for length, version in tokens["policy_versions"]],
                temperature=float(1.0 if params.get("temperature") is None else params["temperature"]),
                constrained=_constrained(params),
            )
        )
    return found, dropped


def build(records: Sequence[Mapping[str, Any]]) -> Built:
    """The rows of one trajectory."""
    found, dropped = turns(records)
    rows: list[Row] = []
    ends: list[tuple[list[int], Row, int]] = []
    """After each turn: all ids so far, its row, and how long the row's completion was then."""
    counts: Counter[str] = Counter()
    for turn in found:
        before = max(
            (end for end in ends if turn.prompt[: len(end[0])] == end[0]), key=lambda end: len(end[0]), default=None
        )
        if before is not None and len(before[1].completion) == before[2]:
            row = before[1]
            _observe(row, turn.prompt[len(before[0]) :])
            counts["merged"] += 1
        else:
            row = Row(prompt=turn.prompt, completion=[], logprobs=[], spans=[], observed=[], forced=[], events=[],
                      temperatures=[])  # fmt: skip
            rows.append(row)
            counts["branches" if before is not None else "unmatched"] += bool(ends)
        _sample(row, turn)
        ends.append((row.whole, row, len(row.completion)))
    return Built(
        rows=rows,
        dropped=dropped,
        merged=counts["merged"],
        branches=counts["branches"],
        unmatched=counts["unmatched"],
    )


def encoded(
    row: Row, ordinals: Mapping[str, int], *, reward: float | None = None, **more: str | int
) -> dict[str, Any] | None:
    """The row in the trainer's form; None when weights gave some of it that `ordinals` does not know."""
    if any(name not in ordinals for _, _, name in row.spans):
        return None
    out: dict[str, Any] = {
        "prompt_token_ids": row.prompt,
        "completion_token_ids": row.completion,
        "logprobs": row.logprobs,
        "policy_versions": [{"version": ordinals[name], "start": a, "end": b} for a, b, name in row.spans],
        **more,
    }
    if row.observed:
        out["observed"] = row.observed
    if row.forced:
        out["forced"] = row.forced
    if reward is not None:
        out["reward"] = reward
    return out


def group_of(tenant: str, row: Row) -> str:
    """Attempts at the same task have the same first prompt, token for token."""
    hasher = hashlib.sha256(tenant.encode())
    hasher.update(b"\0" + ",".join(map(str, row.prompt)).encode())
    return hasher.hexdigest()[:16]


def weights(version: str) -> str:
    """Which weights a recorded version (`served name/agent version`) means."""
    return version.rpartition("/")[0] or version


def ordinals(names: Iterable[str]) -> dict[str, int]:
    """Names of weights, in the order in which they came to serve, as the trainer counts them."""
    return {name: position for position, name in enumerate(dict.fromkeys(names))}


def contrasting(groups: Mapping[str, Sequence[float]]) -> tuple[set[str], Counter[str]]:
    """Groups whose members differ in reward; the others teach nothing by comparison. Rewards by group."""
    kept: set[str] = set()
    dropped: Counter[str] = Counter()
    for name, rewards in groups.items():
        if len(rewards) < 2:
            dropped["a group of one"] += len(rewards)
        elif max(rewards) == min(rewards):
            dropped["all of its group were rewarded alike"] += len(rewards)
        else:
            kept.add(name)
    return kept, dropped


def pairs(rows: Iterable[tuple[str, float, dict[str, Any]]]) -> list[dict[str, Any]]:
    """(group, reward, row) → the best and the worst attempt of each group whose rewards differ, as a pair."""
    groups: dict[str, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
    for group, reward, row in rows:
        groups[group].append((reward, row))
    out: list[dict[str, Any]] = []
    for group, attempts in groups.items():
        worst, best = min(attempts, key=lambda a: a[0]), max(attempts, key=lambda a: a[0])
        if best[0] > worst[0]:
            out += [{**best[1], "pair": group, "role": "chosen"}, {**worst[1], "pair": group, "role": "rejected"}]
    return out


def _observe(row: Row, ids: list[int]) -> None:
    if ids:
        start = len(row.completion)
        row.completion += ids
        row.logprobs += [0.0] * len(ids)
        row.observed.append((start, start + len(ids)))


def _sample(row: Row, turn: Turn) -> None:
    at = len(row.completion)
    row.completion = row.completion + turn.completion
    row.logprobs = row.logprobs + turn.logprobs
    row.events.append(turn.event_id)
    row.temperatures.append(turn.temperature)
    for length, name in turn.versions:
        row.spans.append((at, at + length, name))
        at += length
    if turn.constrained:
        first = len(row.completion) - len(turn.completion)
        row.forced += _zeros(turn.logprobs, first)


def _zeros(logprobs: Sequence[float], first: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for position, value in enumerate(logprobs, first):
        if value != 0.0:
            continue
        if spans and spans[-1][1] == position:
            spans[-1] = (spans[-1][0], position + 1)
        else:
            spans.append((position, position + 1))
    return spans


def _reason(record: Mapping[str, Any]) -> str | None:
    """Why a call can't be learned from, if it can't."""
    tokens = record.get("tokens") or {}
    prompt, completion = tokens.get("prompt_token_ids"), tokens.get("completion_token_ids")
    if record["y"]["status"] != "ok":
        return f"its status is {record['y']['status']}"
    if isinstance(prompt, dict) or isinstance(completion, dict):
        return "its tokens are sealed"
    if not prompt or not completion:
        return "no captured tokens"
    runs = tokens.get("policy_versions") or []
    whole = len(tokens.get("logprobs") or []) == len(completion) == sum(length for length, _ in runs)
    if (record.get("ext") or {}).get("tokens_incomplete") or not whole:
        return "its tokens do not add up"
    return None


def _constrained(params: Mapping[str, Any]) -> bool:
    return (
        params.get("tool_choice") not in _FREE_CHOICE
        or params.get("response_format") is not None
        or params.get("structured_outputs") is not None
    )
