"""From one exchange with a model to the drafts of its events.

The request brings what happened since the last answer: user messages and tool results, which become
events of their own. The reply brings the `llm_call`. Everything that would be stored twice is
stored once and pointed at: earlier messages by the call that had them, new ones by their events,
earlier token ids by the call they belong to.
"""

from __future__ import annotations

import time
from array import array
from typing import Any

from msgspec import UNSET, convert, structs

from atdp import clock, messages
from atdp.ids import derived_id, new_id
from atdp.records import (
    Action,
    Actor,
    Cause,
    EventDraft,
    Message,
    MessagePrefix,
    Metadata,
    Observation,
    Outcome,
    Replay,
    Tokens,
)
from registry.manifest import AgentVersion
from services.proxy.assemble import Completion
from services.proxy.contexts import ContextBook
from services.proxy.drafts import StoreDraft
from services.proxy.ending import Ending, claim, outcome, usage
from services.proxy.sessions import (
    Attempt,
    PendingCall,
    Session,
    Sessions,
    Step,
    body_hash,
    exact_hashes,
    meaning_hashes,
)

_NOT_PARAMS = frozenset({"messages", "tools", "model", "stream", "stream_options"})


class Exchange:
    """One request and, once `finish` is called, its answer."""

    def __init__(self, request: dict[str, Any], body: bytes) -> None:
        self.request = request
        self.event_id = new_id("ev")
        self.started = time.time()
        self.clock = time.monotonic()
        raw = request["messages"] if isinstance(request.get("messages"), list) else []
        self.conversation = [messages.from_openai(m) for m in raw if isinstance(m, dict)]
        self.exact = exact_hashes(self.conversation)
        self.meanings = meaning_hashes(self.conversation)
        self.body = body_hash(body)

    def bind(
        self, session: Session, version: AgentVersion, role: str, overlays: list[dict[str, Any]], upstream: str
    ) -> None:
        """Say whose request this is and which version answers it."""
        self.session = session
        self.version = version
        self.role = role
        self.overlays = overlays
        self.upstream = upstream
        self.header = session.header
        self.trajectory_id = session.trajectory_id

    def drafts(self, ending: Ending, contexts: ContextBook) -> list[StoreDraft]:
        """Everything the store needs to know about this exchange."""
        tenant = self.session.key.tenant
        context, contents = contexts.context(tenant, self.version, self.upstream, self.request.get("tools"))
        self.context_id = context.id
        self.inputs = self._inputs()
        self.call = self._call(ending)
        opened = self.session.opened and self.session.trajectory_id == self.trajectory_id
        header = [] if opened else [self.header]
        return [*contexts.unstored(tenant, context, contents), *header, *self.inputs.values(), self.call]

    def stored(self, ending: Ending, sessions: Sessions, contexts: ContextBook) -> None:
        """The drafts are durable: let the session go on from here."""
        session, failed = self.session, ending.status != "ok"
        session.last_used = time.monotonic()
        contexts.mark_stored(session.key.tenant, self.context_id)
        retries = self.call.y.retries if isinstance(self.call.y.retries, int) else 0
        step = self.call.step if isinstance(self.call.step, int) else 0
        sessions.attempted(session, self.body, Attempt(self.event_id, retries, failed, step))
        if session.trajectory_id != self.trajectory_id:
            return
        session.opened = True
        session.step = max(session.step, step)
        session.last_call, session.last_context = self.event_id, self.context_id
        for event in self.inputs.values():
            session.seen.add(event.id)
            if event.kind == "tool_call" and isinstance(event.a, Action) and isinstance(event.a.call_id, str):
                session.calls.pop(event.a.call_id, None)
                session.results[event.a.call_id] = event.id
        if not failed:
            self._answered(ending.completion, sessions, step)

    def _answered(self, completion: Completion, sessions: Sessions, step: int) -> None:
        session = self.session
        for position, choice in enumerate(completion.ordered()):
            answer = messages.from_openai(choice.message)
            conversation = [*self.conversation, answer]
            sessions.answered(session, meaning_hashes(conversation)[-1])
            if position == 0:
                session.exact[exact_hashes(conversation)[-1]] = Step(self.event_id, len(conversation))
            for call in messages.tool_calls(answer):
                if call.get("id"):
                    pending = PendingCall(self.event_id, call["name"], call["arguments"], step)
                    session.calls[call["id"]] = pending
        tokens = self.call.tokens
        if isinstance(tokens, Tokens) and len(completion.choices) == 1 and not self._incomplete(completion):
            ids = completion.prompt_token_ids + completion.choices[0].token_ids
            session.tokens = (self.event_id, array("i", ids))

    # -- what came with the request

    def _inputs(self) -> dict[int, EventDraft]:
        """Events of the messages after the last answer, by their place; those already stored are left out."""
        result: dict[int, EventDraft] = {}
        for index in self._trailing():
            message = self.conversation[index]
            match message["role"]:
                case "user":
                    event = self._user_message(index, message)
                case "tool" if message["parts"][0].get("id") not in self.session.reported:
                    event = self._tool_call(index, message)
                case _:
                    continue
            if event.id not in self.session.seen:
                result[index] = event
        return result

    def _trailing(self) -> range:
        start = len(self.conversation)
        while start and self.conversation[start - 1]["role"] != "assistant":
            start -= 1
        return range(start, len(self.conversation))

    def _user_message(self, index: int, message: dict[str, Any]) -> EventDraft:
        return self._event(
            id=derived_id("ev", self.trajectory_id, self.exact[index].hex()),
            kind="user_message",
            turn=self._turn(index),
            actor=Actor(type="user"),
            o=Observation(messages=[convert(message, Message)]),
            y=Outcome(status="ok"),
        )

    def _tool_call(self, index: int, message: dict[str, Any]) -> EventDraft:
        response = message["parts"][0]
        call_id = response.get("id")
        pending = self.session.calls.get(call_id) if isinstance(call_id, str) else None
        name, arguments = (pending.name, pending.arguments) if pending else self._called(call_id)
        return self._event(
            id=derived_id("ev", self.trajectory_id, self.exact[index].hex()),
            kind="tool_call",
            turn=self._turn(index),
            step=pending.step if pending else UNSET,
            actor=Actor(type="agent"),
            parent_id=pending.event_id if pending else UNSET,
            causes=[Cause(id=pending.event_id, rel="decided_by")] if pending else UNSET,
            a=Action(name=name, call_id=call_id, arguments=arguments),
            y=Outcome(status="ok", result=response.get("response")),
            # nobody has said what the tool does: assume that it writes, and that its result may be replayed
            replay=Replay(class_="approximate", boundary="tenant", effect="write", stub=True),
        )

    def _called(self, call_id: Any) -> tuple[str, Any]:
        """Name and arguments of a call that only the client's own history has."""
        for message in reversed(self.conversation):
            for call in messages.tool_calls(message):
                if call.get("id") == call_id:
                    return call["name"], call["arguments"]
        return "unknown", UNSET

    def _turn(self, index: int) -> int:
        return sum(message["role"] == "user" for message in self.conversation[: index + 1])

    # -- the call

    def _call(self, ending: Ending) -> EventDraft:
        retry = self._retry_of()
        completion = ending.completion
        choices = completion.ordered()
        params = {k: v for k, v in self.request.items() if k not in _NOT_PARAMS}
        return self._event(
            id=self.event_id,
            kind="llm_call",
            turn=self._turn(len(self.conversation)),
            step=retry.step if retry else self.session.step + 1,
            duration_ms=round((time.monotonic() - self.clock) * 1000, 3),
            actor=Actor(type="agent"),
            causes=self._causes(retry) or UNSET,
            o=Observation(messages=self._observed()),
            a=Action(
                messages=[
                    convert(messages.from_openai(choice.message, choice.finish_reason), Message) for choice in choices
                ],
                params=params,
            ),
            y=outcome(ending, choices, retry.retries + 1 if retry else 0),
            m=self._metadata(ending),
            tokens=self._tokens(completion) or UNSET,
            replay=claim(params),
            ext=self._ext(ending),
        )

    def _retry_of(self) -> Attempt | None:
        return self.session.attempts.get(self.body) if self._is_retry else None

    @property
    def _is_retry(self) -> bool:
        attempt = self.session.attempts.get(self.body)
        return attempt is not None and (attempt.failed or self.retried)

    retried: bool = False
    """Did the client call this a retry?"""

    def _causes(self, retry: Attempt | None) -> list[Cause]:
        inputs = (self._input_id(index) for index in self._trailing())
        causes = [Cause(id=id, rel="input") for id in inputs if id]
        if retry:
            causes.append(Cause(id=retry.event_id, rel="retry_of"))
        return causes

    def _input_id(self, index: int) -> str:
        """The event that holds the message at this place; empty when none does."""
        if index in self.inputs:
            return self.inputs[index].id
        id = derived_id("ev", self.trajectory_id, self.exact[index].hex())
        return id if id in self.session.seen else ""

    def _observed(self) -> list[Message] | MessagePrefix:
        """The client's messages, as the longest answered prefix and what came after it."""
        for length in range(len(self.exact), 0, -1):
            step = self.session.exact.get(self.exact[length - 1])
            if step is not None:
                append = [self._pointer(index) for index in range(length, len(self.conversation))]
                return MessagePrefix(prefix=step.event_id, append=append)
        return convert(self.conversation, list[Message])

    def _pointer(self, index: int) -> dict[str, Any]:
        """The message, or its event where the event holds exactly the message."""
        message = self.conversation[index]
        held = message["role"] == "user" or (message["role"] == "tool" and message.keys() == {"role", "parts"})
        id = self._input_id(index)
        return {"event": id} if held and id else message

    def _tokens(self, completion: Completion) -> Tokens | None:
        prompt = completion.prompt_token_ids
        if not prompt:
            return None
        if len(completion.choices) != 1:
            return Tokens(prompt_token_ids=prompt)
        (choice,) = completion.choices.values()
        served = f"{self.version.manifest.policy.served_name}/{self.version.version}"
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
        ext: dict[str, Any] = {
            "request": {k: v for k, v in self.request.items() if k in _NOT_PARAMS - {"messages", "tools"}},
            **ending.ext,
        }
        if self.overlays:
            ext["overlays"] = self.overlays
        if completion.id or completion.model:
            ext["response"] = {"id": completion.id, "model": completion.model}
        if completion.usage is None:
            ext["usage_source"] = "absent"
        if completion.prompt_token_ids or any(choice.token_ids for choice in completion.choices.values()):
            if len(completion.choices) > 1:
                ext["choices"] = [
                    {"completion_token_ids": choice.token_ids, "logprobs": choice.logprobs}
                    for choice in completion.ordered()
                ]
            if len(completion.choices) > 1 or self._incomplete(completion):
                ext["tokens_incomplete"] = True
        return ext

    def _metadata(self, ending: Ending) -> Metadata:
        return Metadata(
            usage=usage(ending.completion.usage),
            ttft_ms=UNSET if ending.ttft_ms is None else round(ending.ttft_ms, 3),
            tags=self._tags(),
        )

    def _tags(self) -> dict[str, str]:
        return {
            "agent": self.version.agent,
            "agent_version": self.version.version,
            "role": self.role,
            "purpose": self.session.key.purpose,
        }

    def _event(self, **fields: Any) -> EventDraft:
        draft = EventDraft(
            atdp="1.0",
            trajectory_id=self.trajectory_id,
            time=clock.from_epoch(self.started),
            ctx=self.context_id,
            **fields,
        )
        return draft if isinstance(draft.m, Metadata) else structs.replace(draft, m=Metadata(tags=self._tags()))
