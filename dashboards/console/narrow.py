"""What is left for a viewer of some tenants of what was written about all of them.

Decisions, verdicts of stages and descriptions of versions quote tenants, and count their sessions. Whoever may not see
all tenants gets what happened, when and by whom; the texts and figures are for whoever may. It is taken out where it is
read: no page has to think of it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

import msgspec

from registry.approvals import Approval
from registry.audit import Entry
from registry.canaries import Canary
from registry.lineage import without_figures
from registry.manifest import AgentVersion

_MOVES = frozenset({"version", "from", "to", "champion", "weight", "outcome", "end"})
"""Of an entry's detail, what says where users were moved, and nothing of whom."""
_SHOWN = frozenset({"intervention", "replaces", "mlflow"})
"""Of an approval's evidence, the same."""


def entry(written: Entry) -> Entry:
    return replace(written, detail={key: value for key, value in written.detail.items() if key in _MOVES})


def version(written: AgentVersion) -> AgentVersion:
    return msgspec.structs.replace(written, description="", lineage=without_figures(written.lineage))


def decision(written: dict[str, Any]) -> dict[str, Any]:
    """Which candidates there were and which was chosen."""
    ranking = [{**row, "score": None, "why": ""} for row in written["ranking"]]
    return {**written, "reason": "", "data_gate": "", "ranking": ranking, "candidates": {}}


def approval(written: Approval) -> Approval:
    """Who is asked about which version, and who said what; not why."""
    return msgspec.structs.replace(
        written,
        evidence={key: value for key, value in written.evidence.items() if key in _SHOWN},
        reason=None,
        grants=tuple(msgspec.structs.replace(grant, reason="") for grant in written.grants),
    )


def canary(written: Canary, seen: Set[str]) -> Canary:
    """Whom it may touch, of the tenants in `seen`."""
    if written.tenants is None:
        return written
    return msgspec.structs.replace(written, tenants=tuple(t for t in written.tenants if t in seen))
