"""`python -m benchmarks.overlays`: what a version's overlays cost a request, in microseconds of one thread.

A request of 1, 20 and 200 turns with ten tools, under a version without overlays and under one with all of them: two
prompt edits, a guardrail, parameters, a tool overlay, 20 skills and 100 memory items, all of which match. The least of
several repetitions counts: others use the machine too.
"""

from __future__ import annotations

import timeit
from typing import Any

from registry.manifest import (
    Guardrail,
    Harness,
    Manifest,
    MemoryItem,
    Policy,
    PromptEdit,
    Skill,
    ToolOverlay,
)
from services.router.overlays import apply_overlays, undo

_TURNS = (1, 20, 200)
_CALLS = 500
_REPEATS = 7
_POLICY = Policy(base="m", served_name="m")


def version() -> Manifest:
    """One that uses every surface."""
    edits = (
        PromptEdit(id="1", op="replace", old="helpful", text="useful"),
        PromptEdit(id="2", op="add", text="Always check the order first."),
    )
    return Manifest(
        policy=_POLICY,
        harness=Harness(edits=edits, params={"temperature": 0}),
        memory=tuple(
            MemoryItem(id=str(n), tenant="t", topic=f"warranty of {n}", text=f"It is {n} months.", trust="vetted")
            for n in range(100)
        ),
        skills=tuple(Skill(id=str(n), name=str(n), when=f"order | cancel {n}", steps=("a", "b")) for n in range(20)),
        tools=(ToolOverlay(name="tool9", hint="Use it.", arguments={"city": {"description": "With its country."}}),),
        guardrails=(Guardrail(id="g", text="Never promise a discount."),),
    )


def request(turns: int) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are helpful. " * 50}]
    for turn in range(turns):
        call = {"id": "c", "type": "function", "function": {"name": "tool1", "arguments": "{}"}}
        messages += [
            {"role": "user", "content": f"What is the warranty of my order {turn}?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "x" * 200},
        ]
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [
        {"type": "function", "function": {"name": f"tool{n}", "description": "d" * 200, "parameters": schema}}
        for n in range(10)
    ]
    return {"model": "m", "messages": messages, "tools": tools}


def main() -> None:
    bare, full = Manifest(policy=_POLICY), version()
    print("turns  none  all  undo   (µs a request)")
    for turns in _TURNS:
        asked = request(turns)
        sent, overlays = apply_overlays(asked, full, "t")
        none = _us(lambda asked=asked: apply_overlays(asked, bare, "t"))
        all_ = _us(lambda asked=asked: apply_overlays(asked, full, "t"))
        back = _us(lambda sent=sent, overlays=overlays: undo(sent, overlays))
        print(f"{turns:5} {none:5.1f} {all_:4.0f} {back:5.0f}")


def _us(call: Any) -> float:
    return min(timeit.repeat(call, number=_CALLS, repeat=_REPEATS)) / _CALLS * 1e6


if __name__ == "__main__":
    main()
