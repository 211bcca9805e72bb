"""Evoplane: the control plane for agents that improve from their own work."""

__version__ = "0.1.0"
