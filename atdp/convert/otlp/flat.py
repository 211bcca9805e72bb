"""Lists written as numbered keys: `0.message.role`, `0.message.tool_calls.1.tool_call.id`."""

from __future__ import annotations

from typing import Any


def unflatten(flat: dict[str, Any]) -> list[Any]:
    """The list whose items' keys were flattened with their index in front; what has no index is left out."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        at = nested
        *path, last = key.split(".")
        for step in path:
            found = at.get(step)
            if not isinstance(found, dict):
                found = at[step] = {}
            at = found
        at[last] = value
    tree = _lists(nested)
    return tree if isinstance(tree, list) else []


def flatten(prefix: str, value: Any) -> dict[str, Any]:
    """Numbered keys of a list, dotted keys of an object."""
    if isinstance(value, list):
        pairs = [(str(index), item) for index, item in enumerate(value)]
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        return {prefix: value}
    return {key: leaf for name, item in pairs for key, leaf in flatten(f"{prefix}.{name}", item).items()}


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    items = {key: _lists(item) for key, item in value.items()}
    numbered = [key for key in items if key.isdigit()]
    if numbered and len(numbered) == len(items):
        return [items[key] for key in sorted(numbered, key=int)]
    return items
