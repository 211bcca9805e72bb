"""Agents' own SDKs, driven through the gateway by base URL and key alone."""
