"""The operator console: one page per agent, a trajectory viewer, an inbox of approvals. Read-only but for decisions."""
