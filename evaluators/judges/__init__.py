"""Judges: models that say how good a decision was, by a written constitution (docs/rewards.md)."""
