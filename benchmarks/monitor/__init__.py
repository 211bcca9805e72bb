"""Does the control plane choose the right surface, and leave well alone? Faults nobody told it about, played blind."""
