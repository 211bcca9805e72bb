"""The two databases a tenant's log can be kept in. What is asked of them is in `base`."""
