"""What every client here does: the same questions, the same two tools, and one JSON file of what it got.

A scenario is a function whose name begins a question, so that its conversation is recognised in the store.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SYSTEM = "You answer questions about the weather."
OPENAI_MODEL = "gpt-fake"
REASONING_MODEL = "gpt-reasoning"
ANTHROPIC_MODEL = "claude-fake"
NEXT = "And in Oslo?"

scenarios: dict[str, Callable[[], Any]] = {}


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a scenario; it returns what the client got, as JSON, or raises."""
    scenarios[function.__name__] = function
    return function


def question(name: str, mark: str = "") -> str:
    """The first thing a conversation's user says."""
    return f"{name}{mark}: What is the weather in Paris and in Rome, and what time is it?"


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Name of the city.
    """
    return f"{city}: sunny, 21 °C"


def get_time() -> str:
    """The time of day."""
    return "It is 12:00"


def run_tool(name: str, arguments: dict[str, Any]) -> str:
    return {"get_weather": get_weather, "get_time": get_time}[name](**arguments)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def plain(value: Any) -> Any:
    """Whatever an SDK gives, as JSON."""
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return plain(dump(mode="json"))
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def raised(error: Exception) -> dict[str, Any]:
    """An error as a client sees it.

    Of an answer that is cut off only that there is one: the gateway says so in the stream, a reset connection can't.
    """
    return {"raised": type(error).__name__, "status": getattr(error, "status_code", None), "message": str(error)}


def main() -> None:
    """Run the scenarios (or those named) in order; write their results to the file that the first argument names."""
    target, *chosen = sys.argv[1:]
    got = {}
    with asyncio.Runner() as runner:
        for name, function in scenarios.items():
            if chosen and name not in chosen:
                continue
            try:
                result = runner.run(function()) if inspect.iscoroutinefunction(function) else function()
                got[name] = plain(result)
            except Exception as error:
                traceback.print_exc()
                got[name] = raised(error) if not name.endswith("_cut") else {"raised": "an error"}
    Path(target).write_text(json.dumps(got, indent=1))
