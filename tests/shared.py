"""Public data that the repository does not carry: `../shared`, or where EVOPLANE_SHARED says."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("EVOPLANE_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data"
REASON = "the public trajectories are not beside this checkout (EVOPLANE_SHARED)"
