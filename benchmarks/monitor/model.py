"""A language model as a stochastic policy over what a request really says.

It is given the bytes of a request as the gateway or replay sends them, and nothing else: it knows a fact if it stands
in the prompt, chooses tools by their descriptions, fills arguments by their schemas, follows steps it is shown, does
not do what the prompt forbids, and is as able as the weights behind the name it is asked by. How able it is with which
weights, and how it slips, is fixed when the world is made; which overlay would help is written nowhere.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.monitor.language import MEANINGS, Meaning, understood

_WORD = re.compile(r"[a-z]+")
_FORBIDDEN = re.compile(r"\b(never|must not|do not|don't|not allowed|may not)\b", re.IGNORECASE)
_EXCEPT = re.compile(r"\bexception: for requests about ([^.]+)\.", re.IGNORECASE)
_STEP = re.compile(r"^\s*\d+\. (.+)$", re.MULTILINE)
_NOT_FOR = re.compile(r"\bnot for requests about ([^:.]+)(?::[^.]*)?\.?", re.IGNORECASE)
_FOR = re.compile(r"\buse this for requests about ([^.]+?)(?:, not (\w+))?\.", re.IGNORECASE)
_SAYS = {"damaged": "broken", "wrong_item": "wrong thing", "changed_mind": "does not like it"}
"""How the model says a reason in its own words, where nothing lists the words it may use."""


@dataclass(frozen=True)
class Habit:
    """How trained weights do one kind of work: as demonstrated, more often the more demonstrations there were."""

    chance: float
    steps: tuple[str, ...]
    order_form: str = ""

    def calls(self, meaning: Meaning) -> list[tuple[str, dict[str, Any]]]:
        order = {"order_id": self.order_form + meaning.order}
        more = {"reason": meaning.reason} if meaning.reason else {"city": meaning.city} if meaning.city else {}
        return [(name, {**order, **more} if name == meaning.tool else dict(order)) for name in self.steps]


@dataclass(frozen=True)
class Abilities:
    """What weights can do: the chance to do a kind of work rightly once everything needed is known."""

    base: float = 0.96
    by_subject: Mapping[str, float] = field(default_factory=dict)
    habits: Mapping[str, Habit] = field(default_factory=dict)
    """What was demonstrated in training, by what the request comes down to."""

    def of(self, subject: str) -> float:
        return self.by_subject.get(subject, self.base)


@dataclass
class Model:
    """One server's models.

    Args:
        weights: abilities by the name asked for; unknown names have the abilities of `""`.
        obeys: the chance to keep to a rule, a step or a schema that it reads.
        knows_steps: the chance to go through all steps of a procedure that nobody told it.
        wordy: the mean number of filler sentences in an answer, by name.
    """

    weights: dict[str, Abilities]
    procedures: Mapping[str, Sequence[str]] = field(default_factory=dict)
    obeys: float = 0.95
    knows_steps: float = 0.15
    wordy: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The assistant's message."""
        rng = random.Random(f"{self.seed}/{request.get('seed')}/{json.dumps(request['messages'], sort_keys=True)}")
        reading = Reading(request)
        if reading.last_role == "tool":
            return self._after_tools(reading, rng)
        meaning = understood(reading.said)
        if meaning.tool:
            return self._act(reading, meaning, rng)
        return {"content": self._told(reading, meaning, rng)}

    def _act(self, reading: Reading, meaning: Meaning, rng: random.Random) -> dict[str, Any]:
        able = self.weights.get(reading.model, self.weights[""])
        habit = able.habits.get(meaning.tool)
        if habit is not None and rng.random() < habit.chance:
            return _calls(habit.calls(meaning), rng)
        rule = reading.forbidding(meaning)
        if rule and rng.random() < self.obeys:
            return {"content": f"I am sorry, I am not allowed to {_FORBIDDEN.sub('', rule).strip(' .')}."}
        if rng.random() > able.of(meaning.tool):
            return self._slip(reading, meaning, rng)
        names = self._steps(reading, meaning, rng) or [reading.route(meaning, rng)]
        return _calls([(n, self._arguments(reading, n, meaning, rng)) for n in names if n in reading.tools], rng)

    def _steps(self, reading: Reading, meaning: Meaning, rng: random.Random) -> list[str]:
        shown = reading.steps()
        if meaning.tool in shown and rng.random() < self.obeys:
            return shown
        known = self.procedures.get(meaning.tool, ())
        return list(known) if known and rng.random() < self.knows_steps else []

    def _arguments(self, reading: Reading, tool: str, meaning: Meaning, rng: random.Random) -> dict[str, Any]:
        known = {"order_id": meaning.order, "city": meaning.city, "reason": meaning.reason}
        arguments = {}
        for name, schema in reading.arguments(tool).items():
            value = known.get(name, "")
            if name == "reason" and not _lists(schema, value):
                value = _SAYS.get(value, value)
            arguments[name] = _fitted(value, schema) if rng.random() < self.obeys else value
        return arguments

    def _slip(self, reading: Reading, meaning: Meaning, rng: random.Random) -> dict[str, Any]:
        """What goes wrong when a model is not able: no call, another tool, or another value."""
        kind = rng.random()
        tools = sorted(reading.tools)
        if kind < 0.4 or not tools:
            return {"content": "Thank you for your message, I will look into it."}
        if kind < 0.7:
            tool = rng.choice(tools)
            return _calls([(tool, self._arguments(reading, tool, meaning, rng))], rng)
        tool = reading.route(meaning, rng)
        arguments = self._arguments(reading, tool, meaning, rng)
        wrong = rng.choice(sorted(arguments))
        return _calls([(tool, {**arguments, wrong: f"{rng.choice('JKLM')}{rng.randrange(1000, 9999)}"})], rng)

    def _after_tools(self, reading: Reading, rng: random.Random) -> dict[str, Any]:
        if reading.results and reading.results[-1].startswith("error") and reading.rounds < 2 and rng.random() < 0.15:
            return self._try_again(reading, rng)
        return {"content": self._padded(f"Done: {'; '.join(reading.results)}.", reading, rng)}

    def _try_again(self, reading: Reading, rng: random.Random) -> dict[str, Any]:
        """Now and then it reads what the tool said, and does what that asks for."""
        meaning = understood(reading.said)
        calls = []
        for name, arguments in reading.called:
            form = re.search(r"like ([A-Z]+-)", reading.results[-1])
            listed = re.search(r"one of ([\w, ]+)", reading.results[-1])
            fixed = dict(arguments)
            if form and "order_id" in fixed and not str(fixed["order_id"]).startswith(form[1]):
                fixed["order_id"] = f"{form[1]}{meaning.order}"
            if listed and "reason" in fixed:
                fixed["reason"] = meaning.reason
            calls.append((name, fixed))
        return _calls(calls, rng)

    def _told(self, reading: Reading, meaning: Meaning, rng: random.Random) -> str:
        value = reading.note(meaning.topic)
        able = self.weights.get(reading.model, self.weights[""])
        if value is None or rng.random() > able.of("answer"):
            return self._padded(f"I believe the {meaning.topic} is {rng.randrange(2, 99)} days.", reading, rng)
        return self._padded(f"The {meaning.topic} is {value}.", reading, rng)

    def _padded(self, text: str, reading: Reading, rng: random.Random) -> str:
        filler = ("Thank you for writing to us.", "We are happy to help.", "Please let us know if anything is unclear.",
                  "Have a pleasant day.", "Your satisfaction matters to us.")  # fmt: skip
        mean = self.wordy.get(reading.model, self.wordy.get("", 0.8))
        return " ".join([text, *filler[: min(len(filler), int(rng.expovariate(1 / mean)) if mean else 0)]])


class Reading:
    """A request as the model reads it."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        messages = request["messages"]
        self.model = str(request.get("model", ""))
        self.system = "\n".join(_text(m) for m in messages if m["role"] in ("system", "developer"))
        self.said = next((_text(m) for m in reversed(messages) if m["role"] == "user"), "")
        self.last_role = messages[-1]["role"]
        self.results = [_text(m) for m in messages if m["role"] == "tool"]
        answers = [m for m in messages if m["role"] == "assistant" and m.get("tool_calls")]
        self.rounds = len(answers)
        self.called = [
            (c["function"]["name"], json.loads(c["function"]["arguments"]))
            for m in answers[-1:]
            for c in m["tool_calls"]
        ]
        self.tools = {t["function"]["name"]: t["function"] for t in request.get("tools") or []}

    def arguments(self, tool: str) -> dict[str, Any]:
        schema: dict[str, Any] = self.tools[tool].get("parameters") or {}
        return dict(schema.get("properties") or {})

    def route(self, meaning: Meaning, rng: random.Random) -> str:
        """The tool whose words are nearest to what is wanted; where words are equally near, chance decides."""
        scores = {n: self._nearness(n, meaning) + 0.3 * rng.random() for n in self.tools}
        return max(scores, key=lambda name: scores[name]) if scores else ""

    def _nearness(self, tool: str, meaning: Meaning) -> float:
        said = set(_WORD.findall(self.said.lower()))
        description = str(self.tools[tool].get("description") or "")
        plain = _NOT_FOR.sub("", _FOR.sub("", description))
        score = float(len(MEANINGS[meaning.tool] & set(_WORD.findall(plain.lower()))))
        score += 0.5 * len(MEANINGS[meaning.tool] & set(tool.split("_")))
        for found in _NOT_FOR.findall(description):
            score -= 3.0 * bool(said & set(_WORD.findall(found.lower())))
        for found, _ in _FOR.findall(description):
            score += 3.0 * bool(said & set(_WORD.findall(found.lower())))
        return score

    def note(self, topic: str) -> str | None:
        """What the prompt says about a topic; of several statements the last."""
        found = re.findall(rf"\bthe {re.escape(topic)} is ([^.\n]+)", self.system, re.IGNORECASE) if topic else []
        return found[-1].strip() if found else None

    def steps(self) -> list[str]:
        """The tools that numbered steps in the prompt name, in order."""
        return [
            name
            for line in _STEP.findall(self.system)
            for name in self.tools
            if re.search(rf"\b{re.escape(name)}\b", line)
        ]

    def forbidding(self, meaning: Meaning) -> str:
        """The sentence of the prompt that forbids what is wanted, if no exception is made; else nothing."""
        said = set(_WORD.findall(self.said.lower()))
        if any(said & set(_WORD.findall(about.lower())) for about in _EXCEPT.findall(self.system)):
            return ""
        acts = MEANINGS[meaning.tool]
        for sentence in re.split(r"(?<=[.!])\s+|\n", self.system):
            if _FORBIDDEN.search(sentence) and acts & set(_WORD.findall(sentence.lower())):
                return sentence.lstrip("- ")
        return ""


def _lists(schema: Mapping[str, Any], value: str) -> bool:
    """Does the schema say which words it takes, and this one among them?"""
    listed = [*(schema.get("enum") or ()), *(schema.get("examples") or ())]
    return value in listed or value in str(schema.get("description") or "")


def _fitted(value: str, schema: Mapping[str, Any]) -> str:
    """The value in the form the schema asks for, if the model sees how."""
    pattern = str(schema.get("pattern") or "")
    if pattern and re.search(pattern, value):
        return value
    words = f"{schema.get('description') or ''} {' '.join(map(str, schema.get('examples') or ()))}"
    for prefix in re.findall(r"\b([A-Z]+-)", f"{pattern.replace(chr(92), '')} {words}"):
        if not value.startswith(prefix) and (not pattern or re.search(pattern, prefix + value)):
            return str(prefix + value)
    return value


def _calls(calls: Sequence[tuple[str, Mapping[str, Any]]], rng: random.Random) -> dict[str, Any]:
    """As tool calls; their ids are as good as unique, as providers' are."""
    return {
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{rng.getrandbits(64):016x}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for name, arguments in calls
        ],
    }


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
