"""The tasks: sums from reasoning-gym, whose own scorer says what is right.

Held-out tasks are other sums: none of their expressions is ever asked in training.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from dataclasses import dataclass
from typing import Any

_NUMBER = re.compile(r"-?\d+")
_HELD_OUT_SEED = 10_000_019

FAMILIES: dict[str, dict[str, int]] = {
    "short": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "long": {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 2},
    "large": {"min_terms": 2, "max_terms": 2, "min_digits": 3, "max_digits": 3},
}

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Compute a sum.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


@dataclass(frozen=True)
class Task:
    question: str
    expression: str
    answer: str


def tasks(
    count: int, seed: int, families: tuple[str, ...] = ("short", "long"), *, held_out: bool = False
) -> list[Task]:
    """`count` different tasks, the families in turn; held-out ones share no expression with any others."""
    found: dict[str, Task] = {}
    forbidden = set() if held_out else {t.expression for t in tasks(400, 0, tuple(FAMILIES), held_out=True)}
    kinds = list(FAMILIES)
    first = _HELD_OUT_SEED if held_out else seed
    generators = [_generated(name, first + kinds.index(name)) for name in families]
    while len(found) < count:
        task = next(generators[len(found) % len(generators)])
        if task.expression not in forbidden:
            found.setdefault(task.expression, task)
    return list(found.values())


def is_right(task: Task, text: str) -> bool:
    """Is the last number of the answer the right one?"""
    numbers = _NUMBER.findall(text.replace(",", ""))
    return bool(numbers) and numbers[-1] == task.answer


def calculate(expression: str) -> str:
    """The tool: the value of a sum of whole numbers, or what is wrong with it."""
    try:
        return str(_value(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "error: not a sum"


def demonstration(task: Task) -> dict[str, Any]:
    """The first step as somebody who knows would take it."""
    function = {"name": "calculate", "arguments": json.dumps({"expression": task.expression})}
    call = {"id": "call_demo", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _generated(family: str, seed: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a dependency of reasoning-gym's compares strings with `is`
        import reasoning_gym

    made = reasoning_gym.create_dataset("chain_sum", size=5_000, seed=seed, **FAMILIES[family])
    return (Task(entry["question"], entry["metadata"]["expression"], entry["answer"]) for entry in made)


def _value(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case _:
            raise ValueError("not a sum")
