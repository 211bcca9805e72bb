"""Interventions: what can be changed about an agent, one file a surface."""

from flows.interventions.base import Evidence, Intervention, Proposal
from flows.interventions.memory import Memory
from flows.interventions.policy import PolicyUpdate

__all__ = ["INTERVENTIONS", "Evidence", "Intervention", "Memory", "PolicyUpdate", "Proposal"]

INTERVENTIONS: dict[str, Intervention] = {"memory": Memory(), "policy": PolicyUpdate()}
