"""What a conversion lost, and what it did not believe: counted by field, with examples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_EXAMPLES = 3
"""Examples kept of each loss; the count says how many there were."""
_EXAMPLE_CHARACTERS = 120


@dataclass
class Loss:
    """One field that did not come through, or one thing that was not believed."""

    count: int = 0
    why: str = ""
    examples: list[str] = field(default_factory=list)


@dataclass
class LossReport:
    """Fills while records flow; complete when they have been read to the end."""

    format: str
    direction: str
    """`read` or `write`."""
    items: int = 0
    """Trajectories, rows or verdicts converted."""
    lost: dict[str, Loss] = field(default_factory=dict)
    """By field: what the other side can't carry."""
    notes: dict[str, Loss] = field(default_factory=dict)
    """By name: what was carried but not believed, or mended, such as a call id used twice."""

    def lose(self, field: str, example: Any = None, why: str = "", count: int = 1) -> None:
        """A value that did not come through."""
        _add(self.lost, field, example, why, count)

    def note(self, name: str, example: Any = None, why: str = "", count: int = 1) -> None:
        """Something the source says that a reader should know about."""
        _add(self.notes, name, example, why, count)

    def to_builtins(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "format": self.format,
            "direction": self.direction,
            "items": self.items,
            "lost": {key: vars(loss) for key, loss in sorted(self.lost.items())},
            "notes": {key: vars(loss) for key, loss in sorted(self.notes.items())},
        }


def _add(losses: dict[str, Loss], key: str, example: Any, why: str, count: int) -> None:
    loss = losses.setdefault(key, Loss(why=why))
    loss.count += count
    if example is not None and len(loss.examples) < _EXAMPLES:
        text = str(example)
        loss.examples.append(text if len(text) <= _EXAMPLE_CHARACTERS else text[:_EXAMPLE_CHARACTERS] + "…")
