"""`python -m evoplane.stack [component …]`: the supervisor itself, in the foreground."""

from __future__ import annotations

import sys

from evoplane.settings import ending_when_wrong, settings
from evoplane.stack.supervisor import supervise

with ending_when_wrong():
    supervise(settings(), sys.argv[1:] or None)
