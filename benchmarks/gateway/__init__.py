"""What the gateway adds to a model call, beside two peers and the bare upstream (`benchmarks/README.md`)."""
