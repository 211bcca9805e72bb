"""Trajectories as OpenTelemetry traces, for whoever looks at traces: MLflow's UI, an operator's collector."""
