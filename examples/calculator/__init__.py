"""A verifiable task for a multi-turn tool agent: sums that a calculator tool gets right, if it is used properly."""
