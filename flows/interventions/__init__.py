"""Interventions: what can be changed about an agent, one file a surface."""

from flows.interventions.base import Evidence, Intervention, Proposal
from flows.interventions.found import INTERVENTIONS, interventions

__all__ = ["INTERVENTIONS", "Evidence", "Intervention", "Proposal", "interventions"]
