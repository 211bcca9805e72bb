"""State machines of what a change goes through on its way to users, as tables of legal transitions.

A candidate is a version being delivered, a canary is one exposure of it, an approval is one question to people. Each
has one function that moves it (`candidates.move`, `canaries.move`, `approvals.decide` and the clock), and each of
these asks the table here first: what is not in the table does not happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from registry.tenants import RegistryError


class IllegalTransition(RegistryError):
    """The state does not allow it; nothing was changed."""


@dataclass(frozen=True)
class Machine:
    """Legal transitions of one sort of thing."""

    name: str
    initial: str
    transitions: Mapping[str, frozenset[str]]
    meaning: Mapping[str, str]
    """What each state says to a person."""

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.transitions)

    @property
    def final(self) -> frozenset[str]:
        """States nothing leads out of."""
        return frozenset(state for state, after in self.transitions.items() if not after)

    def check(self, before: str | None, after: str, what: str = "") -> None:
        """Raises `IllegalTransition` unless the table has it; None is before the beginning."""
        allowed = frozenset({self.initial}) if before is None else self.transitions.get(before, frozenset())
        if after not in allowed:
            said = f"is {before}" if before is not None else "does not exist yet"
            legal = ", ".join(sorted(allowed)) or "nothing"
            raise IllegalTransition(f"{self.name} {what} {said}: it may become {legal}, not {after}".replace("  ", " "))

    def markdown(self) -> str:
        """The table as documentation shows it."""
        rows = [f"| {self.name} is | that means | it may become |", "|---|---|---|"]
        for state, after in self.transitions.items():
            rows.append(f"| `{state}` | {self.meaning[state]} | {', '.join(f'`{s}`' for s in sorted(after)) or '–'} |")
        return "\n".join(rows)


def _table(**after: str) -> dict[str, frozenset[str]]:
    return {state: frozenset(names.split()) for state, names in after.items()}


CANDIDATE = Machine(
    "candidate",
    "accepted",
    _table(
        accepted="shadow canary withdrawn",
        shadow="canary aborted paused withdrawn",
        canary="approval aborted paused withdrawn",
        approval="promoted rejected expired withdrawn",
        promoted="serving rolled_back superseded",
        serving="rolled_back superseded",
        aborted="accepted",
        paused="accepted",
        rejected="accepted",
        expired="accepted",
        withdrawn="accepted",
        rolled_back="accepted serving",
        superseded="accepted serving",
    ),
    {
        "accepted": "its delivery began",
        "shadow": "it answers mirrored sessions; nobody sees the answers",
        "canary": "it answers a share of the sessions",
        "approval": "people are asked",
        "promoted": "it answers everybody and is watched",
        "serving": "it answers everybody; the watch is over, or a rollback went back to it",
        "aborted": "a stage found harm",
        "paused": "a stage had too little traffic to say anything",
        "rejected": "a person said no",
        "expired": "nobody answered in time",
        "withdrawn": "its delivery was taken back, or died",
        "rolled_back": "users were moved away from it",
        "superseded": "another version was promoted over it",
    },
)

CANARY = Machine(
    "canary",
    "running",
    _table(
        running="passed aborted paused withdrawn superseded",
        paused="withdrawn superseded",
        passed="",
        aborted="",
        withdrawn="",
        superseded="",
    ),
    {
        "running": "a share of the sessions gets it",
        "paused": "inconclusive: nobody gets it until it is delivered again, as a new canary",
        "passed": "long enough exposed, and no harm found",
        "aborted": "harm found, or safety breached",
        "withdrawn": "somebody took it out, or its delivery died",
        "superseded": "another candidate's canary, or another champion, took its place",
    },
)

APPROVAL = Machine(
    "approval",
    "pending",
    _table(pending="approved rejected expired", approved="", rejected="", expired=""),
    {
        "pending": "fewer people than needed said yes, nobody said no, and there is time left",
        "approved": "as many people as needed said yes",
        "rejected": "one person said no",
        "expired": "the time was up: the same as no",
    },
)

MACHINES = (CANDIDATE, CANARY, APPROVAL)
