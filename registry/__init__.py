"""What exists and what serves: tenants, agents, versions, pointers, approvals, decisions, audit.

Serving pointers live in a small control database that every gateway reads directly, so a rollback
never waits for MLflow; MLflow's registry mirrors them for people (`registry.versions`).
"""
