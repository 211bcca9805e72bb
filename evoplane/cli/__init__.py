"""The `evoplane` command."""
