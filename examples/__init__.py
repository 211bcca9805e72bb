"""Agents that know nothing of Evoplane beyond a base URL and a key."""
