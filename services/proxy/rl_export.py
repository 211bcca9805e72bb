"""A session's model calls as AReaL exports them: one interaction a call, its tokens as tensors, its reward.

A reward given to a later call counts, discounted, for the calls before it: reward(parent) += γ · mean of
the children's (AReaL, agentic RL guide, "Discount application"). Only captured token ids are exported;
a call without them, or whose ids don't add up to its usage, has its messages instead.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable
from typing import Any

from atdp import messages

REWARD = "reward"
"""The name of a reward that the run itself set."""

Record = dict[str, Any]


def interaction_id(call: Record) -> str:
    """The provider's id of the answer; the event's own where there was none."""
    named = call.get("ext", {}).get("response", {}).get("id")
    return str(named or call["id"])


def rewards_of(records: Iterable[Record]) -> dict[str, tuple[float, str]]:
    """The reward in force of each event, and its annotation: the last that was set and not retracted."""
    found: dict[str, tuple[float, str]] = {}
    for record in records:
        if record["record"] != "annotation" or record["name"] != REWARD or record.get("source", {}).get("id") != "rl":
            continue
        event = record["targets"][0].get("event_id")
        if event is not None and record.get("value") is not None:
            found[event] = (float(record["value"]), record["id"])
    return found


def trainable(records: list[Record]) -> bool:
    """May this trajectory be trained on? Denied once is denied; pending is not allowed."""
    decisions = [records[0].get("gov", {}).get("eligibility", {}).get("train")]
    decisions += [
        record.get("patch", {}).get("eligibility", {}).get("train")
        for record in records
        if record["record"] == "annotation" and record["kind"] == "governance"
    ]
    return "deny" not in decisions and "allow" in decisions


def interactions(calls: list[Record], rewards: dict[str, tuple[float, str]], discount: float) -> dict[str, Any]:
    """Resolved `llm_call` events, in order, as interactions by their ids. `calls` have their prefix in `parent`.

    A provider that gives an id twice does not make two answers one: the later has its event's id.
    """
    returns = _returns(calls, rewards, discount)
    found: dict[str, Any] = {}
    for call in calls:
        made = _interaction(call, returns.get(call["id"]), rewards.get(call["id"]))
        if made["interaction_id"] in found:
            made["interaction_id"] = call["id"]
        found[made["interaction_id"]] = made
    return found


def _returns(calls: list[Record], rewards: dict[str, tuple[float, str]], discount: float) -> dict[str, float]:
    """Each call's reward with what its children's earn it."""
    known = {call["id"] for call in calls}
    children: dict[str, list[str]] = {}
    for call in calls:
        if call.get("parent") in known:
            children.setdefault(call["parent"], []).append(call["id"])
    found: dict[str, float] = {}
    for call in reversed(calls):
        own = rewards.get(call["id"])
        below = [found[child] for child in children.get(call["id"], ()) if child in found]
        if own is not None or below:
            found[call["id"]] = (own[0] if own else 0.0) + (discount * sum(below) / len(below) if below else 0.0)
    return found


def _interaction(call: Record, total: float | None, own: tuple[float, str] | None) -> dict[str, Any]:
    base = {"reward": total, "interaction_id": interaction_id(call), "event_id": call["id"]}
    tokens = call.get("tokens", {})
    prompt, completion, logprobs = (
        tokens.get(name) for name in ("prompt_token_ids", "completion_token_ids", "logprobs")
    )
    whole = all(isinstance(ids, list) for ids in (prompt, completion, logprobs))
    if not whole or call.get("ext", {}).get("tokens_incomplete"):
        answers = [messages.to_openai(_bare(answer)) for answer in call["a"]["messages"][:1]]
        said = [messages.to_openai(message) for message in call["o"]["messages"]]
        return {"messages": said, "output_message_list": answers, **base}
    versions = [_version(version) for count, version in tokens.get("policy_versions", ()) for _ in range(count)]
    before, after = len(prompt), len(completion)
    original = own[0] if own is not None else (total or 0.0)
    tensors = {
        "input_ids": _tensor("q", [*prompt, *completion]),
        "loss_mask": _tensor("q", [0] * before + [1] * after),
        "logprobs": _tensor("f", [0.0] * before + logprobs),
        "versions": _tensor("q", [-1] * before + (versions if len(versions) == after else [-1] * after)),
        "turn_ids": _tensor("i", [-1] * before + [0] * after),
        "attention_mask": _tensor("?", [1] * (before + after)),
        "rewards": _tensor("f", [total or 0.0], flat=True),
        "original_rewards": _tensor("f", [original], flat=True),
        "is_truncated": _tensor("?", [int(call["y"].get("finish_reason") == "length")], flat=True),
    }
    return {"tensor_dict": tensors, **base}


_TYPES = {"q": "int64", "i": "int32", "f": "float32", "?": "bool"}


def _tensor(code: str, values: list[Any], *, flat: bool = False) -> dict[str, Any]:
    """AReaL's JSON form of a tensor; with a batch dimension of one unless `flat`."""
    data = bytes(values) if code == "?" else array(code, values).tobytes()
    shape = [len(values)] if flat else [1, len(values)]
    encoded = base64.b64encode(data).decode()
    return {"type": "tensor", "data": encoded, "shape": shape, "dtype": f"torch.{_TYPES[code]}"}


def _version(version: int | str) -> int:
    """Policy versions are numbers there; of `name/12` the number, of any other name -1."""
    tail = str(version).rpartition("/")[2]
    return int(tail) if tail.isdigit() else -1


def _bare(message: Record) -> Record:
    return {key: value for key, value in message.items() if key != "finish_reason"}
