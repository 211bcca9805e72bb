"""Named points where a test may kill the process, to see that nothing acknowledged is lost.

Off unless `EVOPLANE_FAULT` names a point and how many times it is passed first, such as `after_commit:17`;
then it costs one comparison.
"""

from __future__ import annotations

import os
import signal
from typing import Literal

Point = Literal[
    "before_write",
    "in_write",
    "before_commit",
    "after_commit",
    "before_spool_write",
    "in_spool_write",
    "after_spool_write",
    "after_spool_sync",
    "in_spool_rotation",
    "before_drained_commit",
    "after_drained_commit",
    "before_segment_removal",
    "after_segment_removal",
    "before_journal_write",
    "in_journal_write",
    "after_journal_sync",
    "in_journal_replay",
    "before_journal_clear",
    "after_journal_clear",
    "in_blob_write",
    "after_blob_write",
]

_wanted, _, _times = os.environ.get("EVOPLANE_FAULT", "").partition(":")
_left = int(_times or 0)


def reach(point: Point) -> None:
    """The process is here; it may end here."""
    if _wanted and point == _wanted:
        _count_down()


def _count_down() -> None:
    global _left
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _left -= 1
