"""Re-makes recorded conversations under a candidate, from any of their decisions on.

Each decision is asked of the candidate. A tool call is answered by the tape when the same call was recorded in the
same state; else by a sandboxed environment, if there is one; else, when the tool only reads, by the nearest recorded
call, marked approximate; else the branch ends and what it would have come to is unknown. The user's recorded words
go on only as long as the user saw what was recorded.

The engine has no way to the world: it calls the candidate, and environments that promise to be sandboxed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from evaluators.cases import Action, Call, action_of, same_action
from evaluators.environments.base import Environment, require_sandboxed
from evaluators.replay.branch import Answer, AnswerWith, Branch, End, Outcome, Request
from evaluators.replay.recording import Message, Recording, called
from evaluators.replay.safety import forbidden_calls
from evaluators.replay.seeds import seed_of
from evaluators.replay.tape import READS, START, Effect, Recorded, Tape, after

SameSaid = Callable[[Action, Action], bool]


class Engine:
    """Replays under fixed rules; one engine serves any number of candidates.

    Args:
        environment: gives a recording's world, reset to where the recording began, or None where there is none.
        effects: what tools may change, over what the environment and the recording say.
        elsewhere: by tenant, actions of its other trajectories; their reads may answer approximately.
        protected: tools a candidate must not call at all; reported as violations.
        max_steps: answers a branch may take.
        same_said: whether two answers look the same to the user; the same words or quantities by default.
    """

    def __init__(
        self,
        *,
        environment: Callable[[Recording], Environment | None] | None = None,
        effects: Mapping[str, Effect] | None = None,
        elsewhere: Mapping[str, Sequence[Recorded]] | None = None,
        protected: Collection[str] = (),
        max_steps: int = 24,
        same_said: SameSaid = same_action,
    ) -> None:
        self._environment = environment
        self._effects = dict(effects or {})
        self.elsewhere = elsewhere or {}
        self.protected = frozenset(protected)
        self.max_steps = max_steps
        self.same_said = same_said

    async def branches(
        self, recording: Recording, start: int, answer: AnswerWith, repeats: int = 1, seeds: Sequence[int] | None = None
    ) -> list[Branch]:
        """The decision at message `start` and what follows, re-made `repeats` times side by side.

        Seeds are those of `seed_of`, the same for every candidate, unless given. Raises `UnsafeEnvironment`, and
        `ValueError` when there is no assistant's message at `start`.
        """
        if not 0 < start < len(recording.messages) or recording.messages[start].get("role") != "assistant":
            raise ValueError(f"{recording.id}: no decision at message {start}")
        world = _World(self, recording, start)
        drawn = seeds or [seed_of(f"{recording.id}/{start}", repeat) for repeat in range(repeats)]
        walks = [_Walk(self, recording, start, world.clone(), answer, r, seed) for r, seed in enumerate(drawn)]
        return list(await asyncio.gather(*(walk.run() for walk in walks)))

    def make(self, recording: Recording) -> Environment | None:
        made = self._environment(recording) if self._environment else None
        if made is not None:
            require_sandboxed(made)
        return made

    def effect(self, tool: str, recording: Recording, environment: Environment | None) -> Effect:
        known = getattr(environment, "effects", {})
        claimed: Mapping[str, Effect] = {a.tool: a.effect for a in recording.actions}
        return self._effects.get(tool) or known.get(tool) or claimed.get(tool, "write")


class _World:
    """The tape, and the environment brought to the same place; copies of it go different ways."""

    def __init__(self, engine: Engine, recording: Recording, start: int) -> None:
        self.environment = engine.make(recording)
        self._effect: dict[str, Effect] = {}
        self._engine, self._recording = engine, recording
        actions = [self._known(a) for a in recording.actions]
        self.tape = Tape(actions, engine.elsewhere.get(recording.tenant, ()))
        self.state = START
        self.faithful = True
        """Has the environment given every result that was recorded?"""
        for recorded in actions[: len(called(recording.messages[:start]))]:
            self._follow(recorded)

    def clone(self) -> _World:
        copy = object.__new__(_World)
        copy.__dict__.update(self.__dict__)
        copy.environment = self.environment.clone() if self.environment is not None else None
        return copy

    def call(self, call: Call) -> Outcome | None:
        """What the call comes to; None when nothing can say it without acting in the world outside."""
        effect = self._effect_of(call.name)
        # malformed arguments have no canonical form: one broken call is not another
        hit = None if call.arguments is None else self.tape.exact(call.name, call.arguments, self.state)
        made = self._step(call.name, call.arguments)
        outcome: Outcome | None = None
        if hit is not None:
            recorded = hit.recorded
            self.faithful = self.faithful and (made is None or made == (recorded.result, recorded.status))
            outcome = Outcome(call=call, result=recorded.result, status=recorded.status, source="tape",
                              klass="deterministic" if hit.exact else "approximate")  # fmt: skip
        elif made is not None:
            outcome = Outcome(call=call, result=made[0], status=made[1], source="environment",
                              klass="deterministic" if self.faithful else "approximate")  # fmt: skip
        elif effect in READS and (near := self.tape.nearest(call.name, call.arguments)) is not None:
            outcome = Outcome(call=call, result=near.recorded.result, status=near.recorded.status, source="nearest",
                              klass="approximate", similarity=near.similarity)  # fmt: skip
        if outcome is not None:
            self.state = after(self.state, call.name, call.arguments, effect, outcome.status)
        return outcome

    def writes(self, tool: str) -> bool:
        return self._effect_of(tool) not in READS

    def verdict(self, answer: str) -> tuple[bool | None, tuple[str, ...]]:
        judge = getattr(self.environment, "judge", None)
        if judge is None:
            return None, ()
        done, violations = judge(answer)
        return done, tuple(violations)

    def _follow(self, recorded: Recorded) -> None:
        made = self._step(recorded.tool, recorded.arguments)
        self.faithful = self.faithful and (made is None or made == (recorded.result, recorded.status))
        self.state = after(self.state, recorded.tool, recorded.arguments, recorded.effect, recorded.status)

    def _step(self, tool: str, arguments: Any) -> tuple[str, str] | None:
        if self.environment is None:
            return None
        text, _, _, _, info = self.environment.step({"name": tool, "arguments": arguments})
        return text, str(info.get("status", "ok"))

    def _effect_of(self, tool: str) -> Effect:
        if tool not in self._effect:
            self._effect[tool] = self._engine.effect(tool, self._recording, self.environment)
        return self._effect[tool]

    def _known(self, recorded: Recorded) -> Recorded:
        effect = self._effect_of(recorded.tool)
        return recorded if effect == recorded.effect else msgspec.structs.replace(recorded, effect=effect)


class _Walk:
    """One branch under way."""

    def __init__(
        self,
        engine: Engine,
        recording: Recording,
        start: int,
        world: _World,
        answer: AnswerWith,
        repeat: int,
        seed: int,
    ) -> None:
        self._engine, self._recording, self._world, self._ask = engine, recording, world, answer
        self._start, self._repeat, self._seed = start, repeat, seed
        self._messages: list[Message] = list(recording.messages[:start])
        self._place: int | None = start
        """Where in the recording the next answer stands, as long as everything went as recorded."""
        self._turns = recording.user_turns(start)
        self._turn = 0
        self._answers: list[Answer] = []
        self._outcomes: list[Outcome] = []
        self._violations: list[str] = []
        self._diverged = False

    async def run(self) -> Branch:
        for _ in range(self._engine.max_steps):
            given = await self._ask(self._request())
            if given is None:
                return self._end("unanswered", "the candidate gave no answer")
            self._answers.append(given)
            self._messages.append(given.message)
            action = action_of(given.message)
            self._compare(action)
            self._violations += forbidden_calls(action, protected=self._engine.protected)
            ended = self._act(given.message, action) if action.calls else self._answered(action)
            if ended is not None:
                return ended
            if self._place is not None and self._place >= len(self._recording.messages):
                return self._end("finished", "whoever runs the agent asked it no more after this result")
        return self._end("step_limit", f"no end after {self._engine.max_steps} answers")

    def _request(self) -> Request:
        recording = self._recording
        return Request(tenant=recording.tenant, messages=list(self._messages), tools=recording.tools,
                       params=recording.params, seed=self._seed)  # fmt: skip

    def _act(self, message: Message, action: Action) -> Branch | None:
        for raw, call in zip(message["tool_calls"], action.calls, strict=True):
            if call.arguments is None and self._world.environment is None:
                return self._end("malformed_call", f"the arguments of {call.name} are not one JSON object")
            outcome = self._world.call(call)
            if outcome is None:
                end: End = "write_refused" if self._world.writes(call.name) else "not_on_tape"
                return self._end(end, f"no result is known for {call.name}({call.arguments})")
            self._outcomes.append(outcome)
            self._messages.append({"role": "tool", "tool_call_id": raw.get("id"), "content": outcome.result})
        return None

    def _answered(self, action: Action) -> Branch | None:
        if action.malformed:
            return self._end("malformed_call", "a tool call was written as text")
        if self._turn >= len(self._turns):
            return self._end("finished")
        heard, words = self._turns[self._turn]
        if heard.calls or not self._engine.same_said(action, heard):
            return self._end("user_diverged", "the user was told something else than what was recorded")
        self._turn += 1
        self._messages += words
        if self._place is not None:
            self._place += len(words)
        return None

    def _compare(self, action: Action) -> None:
        """Keep track of the place in the recording, until the first thing that was not recorded."""
        if self._place is None:
            return
        recorded = self._recording.messages
        same = self._place < len(recorded) and same_action(action, action_of(recorded[self._place]))
        self._diverged = self._diverged or not same
        self._place = self._place + 1 + len(action.calls) if same else None

    def _end(self, end: End, why: str = "") -> Branch:
        final = action_of(self._answers[-1].message).text if self._answers else ""
        done, found = self._world.verdict(final)
        return Branch(
            recording_id=self._recording.id,
            start=self._start,
            repeat=self._repeat,
            seed=self._seed,
            answers=tuple(self._answers),
            messages=self._messages,
            outcomes=tuple(self._outcomes),
            end=end,
            why=why,
            state=self._world.state,
            recorded_state=self._world.tape.states[-1],
            diverged=self._diverged,
            done=done,
            violations=(*self._violations, *found),
        )


async def replay_all(
    engine: Engine,
    starts: Sequence[tuple[Recording, int]],
    answer: AnswerWith,
    *,
    repeats: int = 1,
    side_by_side: int = 16,
) -> list[list[Branch]]:
    """All branches of all starts, in order of the starts; `side_by_side` starts are under way at any time."""
    slots = asyncio.Semaphore(side_by_side)

    async def one(recording: Recording, start: int) -> list[Branch]:
        async with slots:
            return await engine.branches(recording, start, answer, repeats)

    return list(await asyncio.gather(*(one(recording, start) for recording, start in starts)))
