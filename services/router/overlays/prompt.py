"""The harness: bounded edits of the agent's own instructions, and text behind them."""

from __future__ import annotations

from registry.manifest import Harness, PromptEdit
from services.proxy.dialects.base import Path
from services.router.overlays import places
from services.router.overlays.draft import Draft


def apply(draft: Draft, harness: Harness) -> None:
    for edit in harness.edits:
        if edit.op == "add":
            draft.append("harness", "\n" + edit.text, op="add", edit=edit.id, provenance=list(edit.provenance))
        else:
            _reword(draft, edit)
    if harness.system_append:
        draft.append("harness", harness.system_append)


def _reword(draft: Draft, edit: PromptEdit) -> None:
    text = edit.text if edit.op == "replace" else ""
    told = {"edit": edit.id, "provenance": list(edit.provenance)}
    found = _find(draft, edit.old)
    if found is None:
        draft.skip("harness", edit.op, "system", "the instructions do not have these words", **told)
    elif not draft.fits(len(text.encode()) - len(edit.old.encode())):
        draft.skip("harness", edit.op, "system", draft.too_large, **told)
    else:
        path, at = found
        draft.splice("harness", edit.op, path, at, edit.old, text, **told)


def _find(draft: Draft, old: str) -> tuple[Path, int] | None:
    """Where the words first stand in the system's or developer's instructions."""
    if old:
        for path in draft.dialect.system_texts(draft.request):
            at = places.text_at(draft.request, path).find(old)
            if at >= 0:
                return path, at
    return None
