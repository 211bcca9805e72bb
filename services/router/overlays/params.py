"""Decoding parameters: a version's override the client's."""

from __future__ import annotations

from typing import Any

from services.proxy.dialects import DIALECTS
from services.router.overlays import places
from services.router.overlays.draft import Draft, Overlay

_NAMES: dict[str, dict[str, str]] = {
    "openai.responses": {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"},
    "anthropic.messages": {"max_completion_tokens": "max_tokens", "stop": "stop_sequences"},
    "openai.completions": {"max_completion_tokens": "max_tokens"},
}
"""A parameter that goes by another name in a dialect. Manifests use chat's names."""

_NOT_PARAMS = frozenset(field for dialect in DIALECTS.values() for field in dialect.not_params)
"""What is said, and what is asked to say it, in any dialect."""


def apply(draft: Draft, params: dict[str, Any]) -> None:
    """Set each parameter under the name it has in the client's dialect; what is no parameter stays the client's."""
    if not params:
        return
    renamed = _NAMES.get(draft.dialect.name, {})
    value: dict[str, Any] = {}
    for name, wanted in params.items():
        if name in _NOT_PARAMS:
            draft.skip("params", "set", "params", "not a decoding parameter", name=name)
            continue
        value[_name(draft.given, name, renamed)] = wanted
    if not value:
        return
    before = {name: draft.given[name] for name in value if name in draft.given}
    draft.request.update(value)
    draft.changed("params", "set", "params", value, before=before, value=value)


def undo(request: dict[str, Any], overlay: Overlay) -> None:
    before = overlay["before"]
    for name in overlay["value"]:
        places.restore(request, name, [before[name]] if name in before else [])


def _name(given: dict[str, Any], name: str, renamed: dict[str, str]) -> str:
    if name == "max_tokens" and "max_completion_tokens" in given and not renamed:
        return "max_completion_tokens"  # a chat request has one of the two
    return renamed.get(name, name)
