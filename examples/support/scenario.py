"""The customers: a few hundred seeded requests whose right answer can be checked.

Two families. *Action* requests need the right tool with the right arguments; *policy*
requests need the right fact of the right shop. Training and held-out requests share neither
a sentence template nor an entity (order number, city, product), so a success on held-out
requests can't be a memorised sentence.

The company changes one fact (the returns window) during the demo; `Facts` knows what held when.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

TENANTS = {"northwind": "Northwind Books", "lumen": "Lumen Lighting", "tundra": "Tundra Outdoor"}
Split = Literal["train", "heldout"]
_REDRAWS = 30
"""How often another request is drawn when a shop was asked this one already."""

FACTS_AT_START: dict[str, dict[str, str]] = {
    "northwind": {
        "returns window": "30 days",
        "delivery time": "4 days",
        "warranty": "12 months",
        "gift wrapping": "3 euros",
        "free shipping minimum": "40 euros",
    },
    "lumen": {
        "returns window": "14 days",
        "delivery time": "6 days",
        "warranty": "36 months",
        "gift wrapping": "5 euros",
        "free shipping minimum": "75 euros",
    },
    "tundra": {
        "returns window": "60 days",
        "delivery time": "9 days",
        "warranty": "24 months",
        "gift wrapping": "7 euros",
        "free shipping minimum": "90 euros",
    },
}
CHANGED_TOPIC = "returns window"
FACTS_AFTER: dict[str, str] = {"northwind": "45 days", "lumen": "21 days", "tundra": "100 days"}
"""What the returns window is once the company has changed it, by tenant."""


def fact_sentence(topic: str, value: str) -> str:
    return f"The {topic} is {value}."


# {o} an order number, {c} a city, {p} a product
_ACTION_TEMPLATES: dict[str, dict[Split, list[str]]] = {
    "track_order": {
        "train": [
            "Where is order {o}?",
            "Has {o} been shipped yet?",
            "Can you track {o} for me?",
            "My {p}, order {o}, has not arrived.",
            "What is the status of order {o}?",
            "I'm still waiting for {o}.",
            "Track order {o} please.",
            "When will {o} arrive?",
            "I ordered a {p}, number {o}. Where is it?",
            "Is {o} on its way?",
            "No sign of my {p} yet, the order is {o}.",
            "Please check on {o}.",
            "Do you have any news about {o}?",
            "My {p} should be here by now, order {o}.",
            "Tell me where my parcel {o} is.",
            "Did {o} leave the warehouse?",
            "I have been waiting for the {p} in {o} for days.",
            "Could you check where {o} is?",
        ],
        "heldout": [
            "Could you tell me where order {o} is right now?",
            "I want to know if {o} has been shipped.",
            "Any news on the {p} from order {o}? It has not arrived.",
            "Do you know when order {o} arrives?",
            "My {p} is late. Where is {o}?",
        ],
    },
    "cancel_order": {
        "train": [
            "Please cancel order {o}.",
            "I don't want {o} any more, stop it.",
            "Cancel {o}, I found the {p} cheaper.",
            "Stop order {o} please.",
            "I'd like to call off order {o}.",
            "Can you cancel {o} before it ships?",
            "I ordered a {p} by mistake, cancel {o}.",
            "Cancel my order {o}.",
            "Forget about order {o}, I no longer want it.",
            "Order {o} was a mistake. Cancel it please.",
            "We don't need the {p} any more, cancel {o}.",
            "Please stop {o} before it is sent.",
            "I want to cancel {o}.",
            "Do not send {o}, I have other plans.",
            "Could you call off order {o}?",
            "Kindly cancel {o}.",
            "I won't need {o}, please stop it.",
            "My order {o} is not needed any longer.",
        ],
        "heldout": [
            "I changed my plans, cancel {o} please.",
            "Could you stop order {o} for me?",
            "The {p} is no longer needed, please cancel order {o}.",
            "Order {o} must be cancelled.",
            "I bought the {p} twice. Cancel {o}.",
        ],
    },
    "start_return:damaged": {
        "train": [
            "The {p} in order {o} arrived broken, I want to return it.",
            "Order {o} came damaged. I'd like to send it back.",
            "My {p} from {o} is cracked, start a return.",
            "{o} was damaged on the way, take it back.",
            "The {p} is broken. I want to return order {o}.",
            "Return {o} please, it came damaged.",
            "I want to send back {o}, the {p} is damaged.",
            "Please take {o} back, it is cracked.",
        ],
        "heldout": [
            "I want to return {o}, the {p} is broken.",
            "The {p} came damaged, please take back order {o}.",
        ],
    },
    "start_return:wrong_item": {
        "train": [
            "You sent the wrong item in {o}, I want to return it.",
            "Order {o} has the wrong {p}. I'd like to send it back.",
            "I got the wrong thing in {o}, start a return.",
            "{o} is not what I ordered, take it back.",
            "This is the wrong {p}. I want to return order {o}.",
            "Return {o} please, it is the wrong item.",
            "I want to send back {o}, it is the wrong item.",
            "Please take {o} back, I ordered another {p}.",
        ],
        "heldout": [
            "I want to return {o}, it is the wrong {p}.",
            "Wrong item in order {o}, please take it back.",
        ],
    },
    "start_return:changed_mind": {
        "train": [
            "I changed my mind about the {p} in {o}, I want to return it.",
            "I don't like the {p} from order {o}. I'd like to send it back.",
            "Changed my mind, start a return for {o}.",
            "I no longer like what I bought in {o}, take it back.",
            "The {p} is not for me. I want to return order {o}.",
            "Return {o} please, I changed my mind.",
            "I want to send back {o}, I changed my mind.",
            "Please take {o} back, I don't like the {p}.",
        ],
        "heldout": [
            "I want to return {o}, I simply changed my mind.",
            "I don't like the {p}, please take back order {o}.",
        ],
    },
    "change_address": {
        "train": [
            "Send order {o} to {c} instead.",
            "I moved to {c}, please update order {o}.",
            "Change the address of {o} to {c}.",
            "Please deliver {o} to {c}.",
            "Order {o} should go to {c}.",
            "Can {o} be delivered to {c}?",
            "My new address is in {c}, please change order {o}.",
            "Deliver order {o} to {c}, I have moved.",
            "I live in {c} now. Update the address of {o}.",
            "Ship {o} to {c} please.",
            "The {p} in {o} should be sent to {c}.",
            "Use the {c} address for order {o}.",
            "Could you deliver {o} to {c}?",
            "I have a new address in {c} for order {o}.",
            "Since I moved to {c}, send {o} there.",
            "{o} has to be delivered in {c}.",
            "Please change the city of {o}, it is {c}.",
            "Let {o} go to {c} instead.",
        ],
        "heldout": [
            "I moved, so order {o} must be delivered to {c}.",
            "Could you send {o} to my new address in {c}?",
            "Please change the city for order {o} to {c}.",
            "I need {o} delivered in {c}.",
            "The new address for {o} is in {c}.",
        ],
    },
}

_POLICY_TEMPLATES: dict[str, dict[Split, list[str]]] = {
    "returns window": {
        "train": [
            "How long is the returns window?",
            "How many days do I have for the returns window?",
            "What is your returns window for a {p}?",
            "Is there a returns window for the {p}?",
        ],
        "heldout": [
            "Tell me the returns window please.",
            "I bought a {p}. How long is the returns window?",
            "Which returns window do you have?",
        ],
    },
    "delivery time": {
        "train": [
            "How long is the delivery time?",
            "What is the delivery time for a {p}?",
            "Which delivery time should I expect?",
        ],
        "heldout": ["Tell me the delivery time please.", "I need a {p}. What is the delivery time?"],
    },
    "warranty": {
        "train": [
            "How long is the warranty?",
            "What warranty does the {p} have?",
            "Is there a warranty on a {p}?",
        ],
        "heldout": ["Tell me the warranty please.", "I bought a {p}. How long is the warranty?"],
    },
    "gift wrapping": {
        "train": [
            "How much is gift wrapping?",
            "What does gift wrapping cost for a {p}?",
            "Do you offer gift wrapping for the {p}?",
        ],
        "heldout": ["Tell me the price of gift wrapping.", "It is a present. How much is gift wrapping?"],
    },
    "free shipping minimum": {
        "train": [
            "What is the free shipping minimum?",
            "Is there a free shipping minimum for a {p}?",
            "Which free shipping minimum do you have?",
        ],
        "heldout": [
            "Tell me the free shipping minimum please.",
            "I want a {p}. What is the free shipping minimum?",
        ],
    },
}

_PRODUCTS: dict[Split, list[str]] = {
    "train": ["lamp", "novel", "tent", "atlas", "lantern", "jacket", "mirror", "rope"],
    "heldout": ["kettle", "compass", "bookcase", "chandelier", "sleeping bag"],
}
_CITIES: dict[Split, list[str]] = {
    "train": ["Oslo", "Lyon", "Porto", "Graz", "Turin", "Ghent", "Malmo", "Leeds", "Cork", "Bonn"],
    "heldout": ["Vienna", "Madrid", "Dublin", "Prague", "Geneva", "Bergen"],
}


@dataclass(frozen=True)
class Request:
    """One customer's request and what a right answer to it is."""

    id: str
    tenant: str
    split: Split
    family: Literal["action", "policy"]
    template: str
    text: str
    tool: str | None = None
    arguments: tuple[tuple[str, str], ...] = ()
    topic: str | None = None

    def expected_fact(self, facts: dict[str, dict[str, str]]) -> str:
        assert self.topic is not None
        return facts[self.tenant][self.topic]


def facts_now(changed: bool) -> dict[str, dict[str, str]]:
    """The facts of every shop, before or after the company changed the returns window."""
    facts = {tenant: dict(sheet) for tenant, sheet in FACTS_AT_START.items()}
    if changed:
        for tenant, value in FACTS_AFTER.items():
            facts[tenant][CHANGED_TOPIC] = value
    return facts


def requests(split: Split, n: int, seed: int, policy_share: float = 0.4) -> list[Request]:
    """`n` requests in balanced order: tenants, families and templates take turns, entities are drawn.

    Half of the policy requests are about the topic that will change. No shop is asked the same twice, as
    long as there is something else to ask: repeated cases would make an interval look narrower than it is.
    """
    rng = random.Random(f"{split}-{seed}")
    actions = _by_tool(split, rng)
    other_topics = [t for t in _POLICY_TEMPLATES if t != CHANGED_TOPIC]
    others = _round_robin({t: _POLICY_TEMPLATES[t][split] for t in other_topics}, rng)
    changed = _round_robin({CHANGED_TOPIC: _POLICY_TEMPLATES[CHANGED_TOPIC][split]}, rng)
    tenants = list(TENANTS)
    asked: set[tuple[str, str]] = set()
    out: list[Request] = []
    owed = 0.0
    policy_count = 0
    for i in range(n):
        owed += policy_share
        tenant = tenants[i % len(tenants)]
        topics = None
        if owed >= 1:
            owed -= 1
            policy_count += 1
            topics = changed if policy_count % 2 else others
        for _ in range(_REDRAWS):
            id = f"{split}-{seed}-{i}"
            request = (
                _action(id, tenant, split, actions, rng)
                if topics is None
                else _question(id, tenant, split, topics, rng)
            )
            if (tenant, request.text) not in asked:
                break
        asked.add((tenant, request.text))
        out.append(request)
    return out


def _action(id: str, tenant: str, split: Split, actions: Iterator[tuple[str, str, str]], rng: random.Random) -> Request:
    tool, reason, template = next(actions)
    entities = _entities(split, rng)
    arguments = {"order_id": entities["o"]}
    if reason:
        arguments["reason"] = reason
    if tool == "change_address":
        arguments["city"] = entities["c"]
    text = template.format(**entities)
    return Request(id, tenant, split, "action", template, text, tool=tool, arguments=tuple(arguments.items()))


def _question(id: str, tenant: str, split: Split, topics: Iterator[tuple[str, str]], rng: random.Random) -> Request:
    topic, template = next(topics)
    return Request(id, tenant, split, "policy", template, template.format(**_entities(split, rng)), topic=topic)


def _entities(split: Split, rng: random.Random) -> dict[str, str]:
    """o an order number, c a city, p a product."""
    return {
        "o": _order_number(split, rng),
        "c": rng.choice(_CITIES[split]),
        "p": rng.choice(_PRODUCTS[split]),
    }


def right_answer(request: Request, facts: dict[str, dict[str, str]]) -> dict[str, object]:
    """What a human colleague would have done: an OpenAI assistant message without ids."""
    if request.family == "policy":
        assert request.topic is not None
        return {"content": fact_sentence(request.topic, request.expected_fact(facts))}
    return {"tool": request.tool, "arguments": dict(request.arguments)}


def is_right(
    request: Request, facts: dict[str, dict[str, str]], text: str | None, calls: list[tuple[str, object]]
) -> bool:
    """Did the agent do the right thing: exactly the right call, or the right fact and no other number?"""
    if request.family == "action":
        return calls == [(request.tool, dict(request.arguments))]
    value = request.expected_fact(facts)
    return not calls and value in (text or "") and re.findall(r"\d+", text or "") == re.findall(r"\d+", value)


def _by_tool(split: Split, rng: random.Random) -> Iterator[tuple[str, str, str]]:
    """(tool, return reason or "", template): the tools take turns, and so do the reasons of returns."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for kind, by_split in _ACTION_TEMPLATES.items():
        kinds.setdefault(kind.partition(":")[0], {})[kind] = by_split[split]
    rounds = {tool: _round_robin(templates, rng) for tool, templates in kinds.items()}
    while True:
        for tool, templates in rounds.items():
            kind, template = next(templates)
            yield tool, kind.partition(":")[2], template


def _order_number(split: Split, rng: random.Random) -> str:
    """Held-out order numbers are odd, training ones even: the two never meet."""
    return f"{rng.choice('ABCDEFGH')}{rng.randrange(500, 5000) * 2 + (split == 'heldout')}"


def _round_robin(groups: dict[str, list[str]], rng: random.Random) -> Iterator[tuple[str, str]]:
    pools = {name: list(templates) for name, templates in groups.items()}
    while True:
        for name, templates in pools.items():
            if not templates:
                templates.extend(groups[name])
            yield name, templates.pop(rng.randrange(len(templates)))
