"""Tasks and contexts of Agent2Agent: which a request names, and which an answer tells of.

Names of fields are compared without case and underscores, because servers read them so too; a message in which two
are the same then could be read in two ways.
"""

from __future__ import annotations

from typing import Any

JsonRpc = dict[str, Any]

LISTING = frozenset({"tasks/list", "listtasks"})
"""Methods whose answers tell of everyone's tasks, in lower case."""


def doubly_spelled(message: JsonRpc) -> bool:
    """Are two of the names that a request is judged by the same for some reader?"""
    params = _fields(_fields(message).get("params"))
    return any(
        isinstance(value, dict) and len(_fields(value)) < len(value)
        for value in (message, _fields(message).get("params"), params.get("message"))
    )


def named_params(message: JsonRpc) -> bool:
    """Has it its parameters by name, if any? By their places nobody here could tell which of them names a task."""
    return isinstance(_fields(message).get("params") or {}, dict)


def listing(message: JsonRpc) -> bool:
    """Does a request ask for all tasks there are?"""
    return str(_fields(message).get("method")).lower() in LISTING


def named_by(message: JsonRpc) -> list[str]:
    """The ids of tasks and contexts that a request names."""
    fields = _fields(message)
    params, method = _fields(fields.get("params")), str(fields.get("method"))
    said = _fields(params.get("message"))
    references = said.get("referencetaskids")
    found = [
        *(params.get(field) for field in ("taskid", "contextid", "sessionid")),
        *(said.get(field) for field in ("taskid", "contextid")),
        *(references if isinstance(references, list) else ()),
        *(_resource(params.get(field)) for field in ("name", "parent")),
    ]
    if not (method.lower().endswith(("pushnotificationconfig", "pushnotificationconfigs")) and params.get("taskid")):
        found.append(params.get("id"))  # there, it is the configuration's own
    return [str(id) for id in found if isinstance(id, str | int) and id != ""]


def told_by(message: JsonRpc) -> list[str]:
    """The ids of the task and the context that an answer tells of."""
    result = message.get("result")
    if not isinstance(result, dict):
        return []
    wrapped = [result.get(name) for name in ("task", "message", "statusUpdate", "artifactUpdate")]
    found: list[Any] = []
    for each in (result, *wrapped):
        if isinstance(each, dict):
            found += [each.get("taskId"), each.get("contextId")]
            if isinstance(each.get("status"), dict):
                found.append(each.get("id"))
    return list(dict.fromkeys(id for id in found if isinstance(id, str) and id))


def _fields(value: Any) -> dict[str, Any]:
    found = value.items() if isinstance(value, dict) else ()
    # not in lower case: `taſkId` is a `taskId` for some
    return {name.casefold().replace("_", ""): inner for name, inner in found}


def _resource(name: Any) -> str | None:
    """The task in a resource's name, `tasks/<id>/…`."""
    parts = name.split("/") if isinstance(name, str) else []
    return parts[1] if len(parts) > 1 and parts[0] == "tasks" else None
