"""From one exchange with a model to the drafts of its events.

The request brings what happened since the last answer: user messages and tool results, which become
events of their own (`inputs`). The reply brings the `llm_call`. Everything that would be stored twice
is stored once and pointed at: earlier messages by the call that had them, new ones by their events,
earlier token ids by the call they belong to.
"""

from __future__ import annotations

import time
from array import array
from functools import cached_property
from typing import Any

import orjson
from msgspec import UNSET, convert

from atdp import clock, messages
from atdp.ids import new_id
from atdp.records import (
    Action,
    Actor,
    Cause,
    Changed,
    EventDraft,
    Message,
    MessagePrefix,
    Metadata,
    Observation,
    Tokens,
)
from registry.manifest import AgentVersion
from services.proxy.budgets import Reservation
from services.proxy.clients import Line
from services.proxy.completion import Choice, Completion
from services.proxy.contexts import ContextBook
from services.proxy.conversation import Hash, Seed, after, digest, fingerprints
from services.proxy.dialects import Dialect
from services.proxy.drafts import Ahead, Answer, Stored, StoreDraft
from services.proxy.ending import Ending, claim, outcome
from services.proxy.inputs import Inputs
from services.proxy.rewording import Told, reworded
from services.proxy.sessions import Attempt, PendingCall, Session, Sessions, Step

LARGE_BYTES = 262_144
"""A request or an answer larger than this must not be worked on in the event loop."""

_NOT_ASKED = frozenset({"stream", "stream_options"})
"""How an answer travels does not make it another question."""
_MOST_CHANGED = 8
"""A history of which more messages than this came back in another form is stored whole."""


class Exchange:
    """One request and, once it is stored, its answer."""

    retried = False
    """Did the client call this a retry?"""
    line: Line = "main"
    weights = ""
    """Which base weights answered, as our worker says; empty while they are those it started with."""
    model: str | None = None
    """The model asked for at an upstream that isn't our worker."""
    held: Reservation | None = None
    """What was set aside of its tenant's budget."""
    translation: dict[str, Any] | None = None
    """From which dialect to which the request was translated, and what was lost on the way."""

    ahead: Ahead | None = None
    """What the store has been told of it before the answer is there."""
    failed = False
    """Was it answered with an error, or not to its end?"""
    begun_again = False
    """Has it been moved to another trajectory, for its own could not be gone on with?"""
    large = False
    """Is it so large that what is done with it must not be done on the event loop?"""

    def __init__(
        self, dialect: Dialect, request: dict[str, Any], hash_key: bytes = b"", goes_on_from: Step | None = None
    ) -> None:
        self.dialect = dialect
        self.request = request
        self.event_id = new_id("ev")
        self.started = time.time()
        self.clock = time.monotonic()
        self.conversation = dialect.conversation(request)
        self.instructions = dialect.instructions(request)
        self._hash_key = hash_key
        self._before = goes_on_from
        self._asked: list[StoreDraft] | None = None
        seed = goes_on_from.end if goes_on_from is not None else None
        self.prints = fingerprints(self.conversation, self.instructions, hash_key, seed)

    @cached_property
    def body(self) -> bytes:
        """The hash of what is asked, however the answer shall travel."""
        asked = {k: v for k, v in self.request.items() if k not in _NOT_ASKED and k != self.dialect.content_field}
        said = self.prints.exact[-1] if self.prints.exact else b""
        before = self._before.end.exact if self._before else b""
        name = self.dialect.name.encode()
        return digest(self._hash_key, name + before + said + orjson.dumps(asked, option=orjson.OPT_SORT_KEYS))

    def bind(
        self, session: Session, version: AgentVersion, role: str, overlays: list[dict[str, Any]], upstream: str
    ) -> None:
        """Say whose request this is and which version answers it."""
        self.session = session
        self.version = version
        self.role = role
        self.overlays = overlays
        self.upstream = upstream
        self._belongs()

    def begin_again(self) -> None:
        """What was said before is not in the log: it is part of the trajectory in which its session is now."""
        self._belongs()
        self._asked, self.begun_again = None, True

    def _belongs(self) -> None:
        self.header = self.session.header
        self.trajectory_id = self.session.trajectory_id

    @property
    def continued(self) -> bool:
        """Does the request leave out what was said before, naming the answer it goes on from?"""
        return self._before is not None

    @property
    def extends(self) -> bool:
        """Does the request go on from an answer of its session?"""
        return self._before is not None or self._prefix() is not None

    def asked(self, contexts: ContextBook) -> list[StoreDraft]:
        """What the store needs to know whatever is answered: what came with the request."""
        tenant = self.session.key.tenant
        tools = self.request.get("tools")
        context, contents = contexts.context(tenant, self.version, self.upstream, self.model, tools)
        self._context, self._with_context = context, contexts.unstored(tenant, context, contents)
        self._ctx = contexts.named(tenant, context)
        self._inputs = Inputs(self.session, self.conversation, self.prints, self._before.turn if self._before else 0)
        self.inputs = [self._event(id=id, **fields) for id, fields in self._inputs.unstored().items()]
        header = [] if self._opened else [self.header]
        self._basis = self._depends_on(contexts)
        self._asked = [*self._with_context, *header, *self.inputs]
        return self._asked

    def _depends_on(self, contexts: ContextBook) -> tuple[Any, ...]:
        """What other exchanges and reports may change until the answer is there."""
        return self._opened, contexts.stored_as(self.session.key.tenant, self._context), self._inputs.basis()

    @property
    def _opened(self) -> bool:
        """Is the trajectory in the log?"""
        return self.session.opened and self.session.trajectory_id == self.trajectory_id

    def drafts(self, ending: Ending, contexts: ContextBook) -> list[StoreDraft]:
        """Everything the store needs to know about this exchange: first what `asked` gives, if that still holds."""
        asked = self._asked
        if asked is None or self._basis != self._depends_on(contexts):
            asked = self.asked(contexts)
        self._answers = [self._answer(choice) for choice in ending.completion.ordered()]
        first = self._answers[0][0] if self._answers and not self._before else None
        self._told = None if first is None else Told.of(first, self.prints)
        self._goes_on_from = self._before or self._prefix()
        self.call = self._call(ending)
        answers = [Answer(id, self.event_id) for id in self.kept(ending)]
        return [*asked, self.call, *answers]

    def kept(self, ending: Ending) -> list[str]:
        """Ids by which the tenant may name this answer later, or what the provider keeps beside it."""
        found = self.dialect.kept(self.request, ending.completion) if ending.status == "ok" else []
        return list(dict.fromkeys(id for id in found if "\0" not in id))  # no row can hold those

    def stored(self, ending: Ending, became: list[Stored], sessions: Sessions, contexts: ContextBook) -> None:
        """The drafts are durable, and `became` these: let the session go on from here."""
        session, failed = self.session, ending.status != "ok"
        session.last_used = time.monotonic()
        contexts.mark_stored(session.key.tenant, self._with_context, became)
        retries = self.call.y.retries if isinstance(self.call.y.retries, int) else 0
        step = self.call.step if isinstance(self.call.step, int) else 0
        sessions.attempted(session, self.body, Attempt(self.event_id, retries, failed, step))
        if session.trajectory_id != self.trajectory_id:
            return
        session.opened = True
        session.step = max(session.step, step)
        session.last_call = self.event_id
        session.last_context = contexts.named(session.key.tenant, self._context)
        if self.line == "main":
            session.system, session.tools = self.prints.system, bool(self.request.get("tools"))
        session.seen.update(self._inputs.exact_forms())
        for event in self.inputs:
            if event.kind == "tool_call" and isinstance(event.a, Action) and isinstance(event.a.call_id, str):
                session.calls.pop(event.a.call_id, None)
                session.results[event.a.call_id] = event.id
        if not failed:
            self._answered(ending.completion, sessions, step)

    def _answered(self, completion: Completion, sessions: Sessions, step: int) -> None:
        session = self.session
        turn = self._inputs.turn(len(self.conversation))
        for position, (answer, piece, end) in enumerate(self._answers):
            pieces = None if self._before or position else [*self.prints.pieces, piece]
            told = None if position else self._told
            answered = Step(self.event_id, end, pieces, turn, position, told)
            main = position == 0 and self.line == "main"
            sessions.answered(session, answered, completion.id if position == 0 else None, main)
            for call in messages.tool_calls(answer):
                if call.get("id"):
                    pending = PendingCall(self.event_id, call["name"], call["arguments"], step)
                    session.calls[call["id"]] = pending
        tokens = self.call.tokens
        if isinstance(tokens, Tokens) and len(completion.choices) == 1 and not self._incomplete(completion):
            ids = completion.prompt_token_ids + completion.choices[0].token_ids
            session.tokens = (self.event_id, array("i", ids))

    def _answer(self, choice: Choice) -> tuple[dict[str, Any], Hash, Seed]:
        """One of the answers, its fingerprint, and the conversation that it ends."""
        answer = self.dialect.answer(choice)
        before = self._before.end if self._before is not None else None
        return answer, *after(self.prints, answer, self._hash_key, before)

    # -- the call

    def _call(self, ending: Ending) -> EventDraft:
        retry = self._retry_of()
        completion = ending.completion
        choices = completion.ordered()
        params = self.dialect.params(self.request)
        answers = [convert(answer, Message) for answer, _, _ in self._answers]
        return self._event(
            id=self.event_id,
            kind="llm_call",
            turn=self._inputs.turn(len(self.conversation)),
            step=retry.step if retry else self.session.step + 1,
            duration_ms=round((time.monotonic() - self.clock) * 1000, 3),
            actor=Actor(type="agent"),
            causes=self._causes(retry) or UNSET,
            o=Observation(
                system_instructions=UNSET if self.instructions is None else self.instructions,
                messages=self._observed(),
            ),
            a=Action(messages=answers, params=params),
            y=outcome(ending, choices, retry.retries + 1 if retry else 0),
            m=self._metadata(ending),
            tokens=self._tokens(completion) or UNSET,
            replay=claim(params),
            ext=self._ext(ending),
        )

    def _retry_of(self) -> Attempt | None:
        attempt = self.session.attempts.get(self.body)
        return attempt if attempt is not None and (attempt.failed or self.retried) else None

    def _causes(self, retry: Attempt | None) -> list[Cause]:
        causes = self._inputs.causes()
        if retry:
            causes.append(Cause(id=retry.event_id, rel="retry_of"))
        step, tip = self._goes_on_from, self.session.tip
        if step is not None and tip is not None and step.event_id != tip.event_id and not retry:
            causes.append(Cause(id=step.event_id, rel="branch_of"))
        return causes

    def _prefix(self) -> Step | None:
        """The longest answered prefix of the request, in its exact form, in another that says the same, or with an
        answer that is told in other words."""
        for length in range(len(self.conversation), 0, -1):
            at = length - 1
            step = self.session.exact.get(self.prints.exact[at]) or self.session.meanings.get(self.prints.meanings[at])
            step = step or reworded(self.session, self.prints, at)
            if step is not None and step.choice == 0 and step.end.length == length:
                return step
        return None

    def _observed(self) -> list[Message] | MessagePrefix:
        """The client's messages, as the longest answered prefix and what came after it."""
        if self._before is not None:
            append = [self._inputs.pointer(index) for index in range(len(self.conversation))]
            return MessagePrefix(prefix=self._before.event_id, append=append)
        step = self._goes_on_from
        changed = self._changed(step) if step is not None else None
        if step is None or changed is None:
            return convert(self.conversation, list[Message])
        append = [self._inputs.pointer(index) for index in range(step.end.length, len(self.conversation))]
        return MessagePrefix(prefix=step.event_id, append=append, changed=changed or UNSET)

    def _changed(self, step: Step) -> list[Changed] | None:
        """The prefix's messages that came back in another form; None when that can't be said or is too much."""
        if self.prints.exact[step.end.length - 1] == step.end.exact:
            return []
        if step.pieces is None:
            return None
        different = [at for at, piece in enumerate(step.pieces) if piece != self.prints.pieces[at]]
        if len(different) > _MOST_CHANGED:
            return None
        return [Changed(at=at, message=convert(self.conversation[at], Message)) for at in different]

    def _tokens(self, completion: Completion) -> Tokens | None:
        prompt = completion.prompt_token_ids
        if not prompt:
            return None
        if len(completion.choices) != 1:
            return Tokens(prompt_token_ids=prompt)
        (choice,) = completion.choices.values()
        weights = f"@{self.weights}" if self.weights else ""
        served = f"{self.version.manifest.policy.served_name}{weights}/{self.version.version}"
        ids: list[int] | dict[str, Any] = prompt
        if self.session.tokens is not None:
            event_id, before = self.session.tokens
            if len(before) <= len(prompt) and before.tolist() == prompt[: len(before)]:
                ids = {"prefix": event_id, "append": prompt[len(before) :]}
        return Tokens(
            prompt_token_ids=ids,
            completion_token_ids=choice.token_ids,
            logprobs=choice.logprobs,
            policy_versions=[(len(choice.token_ids), served)],
        )

    @staticmethod
    def _incomplete(completion: Completion) -> bool:
        """Do ids, log-probabilities and usage disagree about how many tokens there were?"""
        usage = completion.usage or {}
        ids = sum(len(choice.token_ids) for choice in completion.choices.values())
        logprobs = sum(len(choice.logprobs) for choice in completion.choices.values())
        return (
            ids != usage.get("completion_tokens")
            or logprobs != ids
            or len(completion.prompt_token_ids) != usage.get("prompt_tokens")
        )

    def _ext(self, ending: Ending) -> dict[str, Any]:
        completion = ending.completion
        asked = self.dialect.not_params - {self.dialect.content_field, "tools", "system", "instructions"}
        ext: dict[str, Any] = {
            "dialect": self.dialect.name,
            "request": {key: value for key, value in self.request.items() if key in asked},
            **ending.ext,
        }
        if self.overlays:
            ext["overlays"] = self.overlays
        if self.translation is not None:
            ext["translation"] = self.translation
        if completion.id or completion.model:
            ext["response"] = {"id": completion.id, "model": completion.model}
        if completion.usage is None:
            ext["usage_source"] = "absent"
        if ending.status == "ok":
            ext["links"] = self._links()
        if completion.prompt_token_ids or any(choice.token_ids for choice in completion.choices.values()):
            if len(completion.choices) > 1:
                ext["choices"] = [
                    {"completion_token_ids": choice.token_ids, "logprobs": choice.logprobs}
                    for choice in completion.ordered()
                ]
            if len(completion.choices) > 1 or self._incomplete(completion):
                ext["tokens_incomplete"] = True
        return ext

    def _links(self) -> dict[str, Any]:
        """What a restart needs to know to go on from here, without reading what was said."""
        ends = [end for _, _, end in self._answers]
        told = self._told
        return {
            "length": ends[0].length,
            "ends": [[end.exact.hex(), end.meaning.hex()] for end in ends],
            "system": self.prints.system.hex(),
            **({} if told is None else {"told": [told.asked.hex(), told.length, told.text.hex(), *told.calls]}),
            "inputs": {id: piece.hex() for id, piece in self._inputs.exact_forms().items()},
        }

    def _metadata(self, ending: Ending) -> Metadata:
        return Metadata(
            usage=self.dialect.usage(ending.completion.usage),
            ttft_ms=UNSET if ending.ttft_ms is None else round(ending.ttft_ms, 3),
            tags={**self._tags(), "line": self.line},
        )

    def _tags(self) -> dict[str, str]:
        return {
            "agent": self.version.agent,
            "agent_version": self.version.version,
            "role": self.role,
            "purpose": self.session.key.purpose,
        }

    def _event(self, **fields: Any) -> EventDraft:
        fields.setdefault("m", Metadata(tags=self._tags()))
        return EventDraft(
            atdp="1.0",
            trajectory_id=self.trajectory_id,
            time=clock.from_epoch(self.started),
            ctx=self._ctx,
            **fields,
        )
