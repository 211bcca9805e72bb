"""The demo: one agent, three shops, two real improvements and one bad candidate, on the real stack."""
