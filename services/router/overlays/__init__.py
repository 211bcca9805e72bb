"""What an agent version changes in a request, one file a surface; every change can be taken back."""

from services.router.overlays.apply import apply_overlays
from services.router.overlays.draft import Overlay
from services.router.overlays.memory import memory_text, select_memory
from services.router.overlays.narrowing import NotNarrower, narrowed
from services.router.overlays.tools import HINT
from services.router.overlays.undo import NotApplied, undo

__all__ = [
    "HINT",
    "NotApplied",
    "NotNarrower",
    "Overlay",
    "apply_overlays",
    "memory_text",
    "narrowed",
    "select_memory",
    "undo",
]
