"""The demo's customer-support desk: a plain agent, the shop it works in, and its customers."""
